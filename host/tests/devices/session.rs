//! Sessions, the eager API and the choice of a device, on a plugin made for this test.
//!
//! The plugin is written on the SDK and linked. Its kernels are few, and one of them calls back into the test,
//! so that what happens between two launches is decided here and not by time.

use devbay_host::internals::core::program::{AttrValue, text};
use devbay_host::internals::core::tensor::{AlignedBytes, F32};
use devbay_host::internals::eager;
use devbay_host::{
    Cancel, Error, ErrorKind, InputView, Model, Policy, Requirements, Result, RunOptions, Runtime, Session,
    Tensor,
};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use toy::{Hook, hook};

/// A plugin with two devices of an accelerator's kind and a few kernels.
mod toy {
    use devbay_plugin_api::abi::{
        DEVBAY_DEVICE_HOST_REFS, DEVBAY_DEVICE_KIND_NPU, DEVBAY_KERNEL_DATA_SHAPE, DEVBAY_SPACE_ADDRESSABLE,
        DEVBAY_SPACE_HOST_VISIBLE,
    };
    use devbay_plugin_api::locks::lock;
    use devbay_plugin_api::sdk::*;
    use std::collections::BTreeMap;
    use std::sync::{Arc, Mutex};

    /// Function that a kernel `test.Hook` calls when it is launched.
    pub type Hook = Arc<dyn Fn() + Send + Sync>;

    static HOOKS: Mutex<BTreeMap<i64, Hook>> = Mutex::new(BTreeMap::new());

    /// Has kernels with the attribute `hook = id` call `body`; each test has an id of its own.
    pub fn hook(id: i64, body: Hook) {
        lock(&HOOKS).insert(id, body);
    }

    pub struct Toy {
        devices: [ToyDevice; 2],
    }

    pub struct ToyDevice {
        desc: DeviceDesc,
    }

    pub struct ToyStream;

    const FLOATS: &[TypeVar] = &[TypeVar::of(&[F32])];

    impl Plugin for Toy {
        type Device = ToyDevice;
        const ABOUT: About = About {
            name: "toy",
            vendor: "tests",
            version: "1",
            options: &[PluginOption { key: "mood", default: "good", doc: "good or bad" }],
            ..About::DEFAULT
        };
        const KERNELS: &'static [Kernel<ToyDevice>] = &[
            Kernel::new("Relu", 14, |_| Ok(Prepared::new(Relu))).types(FLOATS).operands(&[0], &[0]),
            Kernel::new("NonZero", 13, |_| Ok(Prepared::new(NonZero)))
                .types(&[TypeVar::of(&[F32]), TypeVar::of(&[I64])])
                .operands(&[0], &[1])
                .flags(DEVBAY_KERNEL_DATA_SHAPE),
            Kernel::new("Hook", 1, prepare_hook)
                .domain("test")
                .types(FLOATS)
                .attributes(&["hook"])
                .operands(&[0], &[0])
                .shape(|request, _| Ok((F32, request.required_input(0)?.shape().to_vec()))),
            Kernel::new("Repeat", 2, prepare_repeat)
                .domain("test")
                .types(&[TypeVar::of(&[I64, F32])])
                .attributes(&["times"])
                .operands(&[0], &[0])
                .shape(repeat_type),
        ];

        fn create(_host: Host, options: &Options<'_>) -> Result<Self> {
            if options.get("mood") != "good" {
                return Err(Error::unavailable("the toy is in a bad mood"));
            }
            let device = |i: usize, bytes_total: u64| {
                let space = SpaceDesc {
                    flags: DEVBAY_SPACE_HOST_VISIBLE | DEVBAY_SPACE_ADDRESSABLE,
                    bytes_total,
                    ..SpaceDesc::default()
                };
                let desc = DeviceDesc {
                    kind: DEVBAY_DEVICE_KIND_NPU,
                    id: format!("serial-{i}"),
                    name: format!("toy number {i}"),
                    inline: true,
                    flags: DEVBAY_DEVICE_HOST_REFS,
                    spaces: vec![space],
                    ..DeviceDesc::default()
                };
                ToyDevice { desc }
            };
            Ok(Self { devices: [device(0, 1 << 20), device(1, 1 << 30)] })
        }

        fn devices(&self) -> Result<Vec<&ToyDevice>> {
            Ok(self.devices.iter().collect())
        }
    }

    impl Device for ToyDevice {
        type Buffer = HostBuffer;
        type Stream = ToyStream;

        fn describe(&self) -> &DeviceDesc {
            &self.desc
        }

        fn alloc(&self, request: &AllocRequest<'_>) -> Result<Allocated<HostBuffer>> {
            HostBuffer::alloc(request)
        }

        fn create_stream(&self, _request: &StreamRequest<'_>) -> Result<ToyStream> {
            Ok(ToyStream)
        }
    }

    impl Stream for ToyStream {
        type Buffer = HostBuffer;

        fn copy(&self, copy: &CopyRequest<'_, HostBuffer>) -> Result<()> {
            copy.run_on_host();
            Ok(())
        }
    }

    struct Relu;

    impl Launch<ToyDevice> for Relu {
        fn launch(&self, _stream: &ToyStream, operands: &mut Operands<'_>) -> Result<()> {
            let x = operands.input::<f32>(0);
            for (y, x) in operands.output::<f32>(0).iter_mut().zip(x) {
                *y = x.max(0.0);
            }
            Ok(())
        }
    }

    /// Positions of one axis.
    struct NonZero;

    impl Launch<ToyDevice> for NonZero {
        fn launch(&self, _stream: &ToyStream, operands: &mut Operands<'_>) -> Result<()> {
            let found: Vec<i64> =
                (0..).zip(operands.input::<f32>(0)).filter(|(_, x)| **x != 0.0).map(|(i, _)| i).collect();
            operands.output::<i64>(0)[..found.len()].copy_from_slice(&found);
            let extents = operands.extents_ptr();
            // SAFETY: the host lends as many numbers as the output has extents, which are two (B21).
            unsafe { extents.write(1) };
            // SAFETY: the second of those two numbers.
            unsafe { extents.add(1).write(found.len() as i64) };
            Ok(())
        }
    }

    /// Adds 1, after calling the test.
    struct Hooked(i64);

    fn prepare_hook(request: &PrepareRequest<'_, ToyDevice>) -> Result<Prepared> {
        Ok(Prepared::new(Hooked(request.attrs.int("hook", 0)?)))
    }

    impl Launch<ToyDevice> for Hooked {
        fn launch(&self, _stream: &ToyStream, operands: &mut Operands<'_>) -> Result<()> {
            let hook = lock(&HOOKS).get(&self.0).cloned();
            if let Some(hook) = hook {
                hook();
            }
            let x = operands.input::<f32>(0);
            for (y, x) in operands.output::<f32>(0).iter_mut().zip(x) {
                *y = x + 1.0;
            }
            Ok(())
        }
    }

    /// All elements, so many times over.
    struct Repeat;

    fn repeat_type(request: &PrepareRequest<'_, ToyDevice>, _output: usize) -> Result<(DType, Vec<i64>)> {
        let input = request.required_input(0)?;
        let times = request.attrs.int("times", 1)?;
        if times < 1 {
            return Err(Error::invalid(format!("times is {times}, expected 1 or more")));
        }
        Ok((input.dtype(), vec![input.n_elements() as i64 * times]))
    }

    fn prepare_repeat(_request: &PrepareRequest<'_, ToyDevice>) -> Result<Prepared> {
        Ok(Prepared::new(Repeat))
    }

    impl Launch<ToyDevice> for Repeat {
        fn launch(&self, _stream: &ToyStream, operands: &mut Operands<'_>) -> Result<()> {
            let x = operands.input::<u8>(0);
            for part in operands.output::<u8>(0).chunks_mut(x.len().max(1)) {
                part.copy_from_slice(x);
            }
            Ok(())
        }
    }

    devbay_plugin_api::static_plugin!(Toy);
}

/// A plugin of a processor's kind with one kernel that the toy lacks.
mod plain {
    use super::toy::ToyStream;
    use devbay_plugin_api::abi::DEVBAY_DEVICE_KIND_CPU;
    use devbay_plugin_api::sdk::*;

    pub struct Plain(PlainDevice);

    pub struct PlainDevice(DeviceDesc);

    impl Plugin for Plain {
        type Device = PlainDevice;
        const ABOUT: About = About { name: "plain", vendor: "tests", version: "1", ..About::DEFAULT };
        const KERNELS: &'static [Kernel<PlainDevice>] =
            &[Kernel::new("Neg", 13, |_| Err(Error::unsupported("a kernel that is only listed")))
                .types(&[TypeVar::of(&[F32])])
                .operands(&[0], &[0])];

        fn create(_host: Host, _options: &Options<'_>) -> Result<Self> {
            let desc = DeviceDesc {
                kind: DEVBAY_DEVICE_KIND_CPU,
                id: "0".to_owned(),
                name: "plain".to_owned(),
                inline: true,
                ..DeviceDesc::default()
            };
            Ok(Self(PlainDevice(desc)))
        }

        fn devices(&self) -> Result<Vec<&PlainDevice>> {
            Ok(vec![&self.0])
        }
    }

    impl Device for PlainDevice {
        type Buffer = HostBuffer;
        type Stream = ToyStream;

        fn describe(&self) -> &DeviceDesc {
            &self.0
        }

        fn alloc(&self, request: &AllocRequest<'_>) -> Result<Allocated<HostBuffer>> {
            HostBuffer::alloc(request)
        }

        fn create_stream(&self, _request: &StreamRequest<'_>) -> Result<ToyStream> {
            Ok(ToyStream)
        }
    }

    devbay_plugin_api::static_plugin!(Plain);
}

fn runtime() -> Runtime {
    let linked = vec![toy::devbay_entry::PLUGIN, plain::devbay_entry::PLUGIN];
    let runtime = Runtime::builder().threads(1).link_all(linked).build().unwrap();
    let devices = runtime.devices();
    let names: Vec<&str> = devices.iter().map(|device| device.name()).collect();
    assert_eq!(names, ["toy:0", "toy:1", "plain:0"], "{:?}", runtime.report());
    runtime
}

/// A model of statements on an input `x`.
fn model(x: &str, statements: &[&str]) -> Model {
    let source = format!("devbay-program 1\n\nprogram \"p\"(%x: {x}) {{\n{}\n}}\n", statements.join("\n"));
    Model::from_program(text::parse(&source).unwrap_or_else(|error| panic!("{error}\n{source}")))
}

/// Five launches in a row that call a hook.
fn five_hooks(id: i64) -> Model {
    let statements: Vec<String> = (0..5)
        .map(|i| format!("%v{} = test.Hook@1(%{}) as \"hook {i}\" {{hook = {id}}}", i + 1, value(i)))
        .collect();
    let mut statements: Vec<&str> = statements.iter().map(String::as_str).collect();
    statements.push("return %v5");
    model("f32[2]", &statements)
}

fn value(i: usize) -> String {
    if i == 0 { "x".to_owned() } else { format!("v{i}") }
}

fn f32s(values: &[f32]) -> Tensor {
    Tensor::from_elements(&[values.len()], values).unwrap()
}

fn run(session: &Session, x: &Tensor, options: &RunOptions) -> Result<Vec<f32>> {
    let outputs = session.run_with(&[("x", x)], options)?;
    Ok(outputs[0].elements::<f32>().expect("an output of f32").to_vec())
}

/// A counter, and the hook that counts and then calls `body` with the number.
fn counting(body: impl Fn(usize) + Send + Sync + 'static) -> (Arc<AtomicUsize>, Hook) {
    let count = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&count);
    (count, Arc::new(move || body(counter.fetch_add(1, Ordering::SeqCst) + 1)))
}

fn expect_error<T>(result: Result<T>, kind: ErrorKind, words: &[&str]) -> Error {
    let Err(error) = result else { panic!("expected an error of kind {kind:?}") };
    assert_eq!(error.kind(), kind, "{error:?}");
    for word in words {
        assert!(error.to_string().contains(word), "expected `{word}` in: {error}");
    }
    error
}

#[test]
fn a_cancelled_run_ends_between_launches() {
    let runtime = runtime();
    let session = Session::new(&five_hooks(1), &runtime.devices()[0]).unwrap();
    let cancel = Cancel::new();
    let from_kernel = cancel.clone();
    let (count, body) = counting(move |n| {
        if n == 2 {
            from_kernel.cancel();
        }
    });
    hook(1, body);
    let options = RunOptions { cancel: Some(cancel), ..RunOptions::default() };
    expect_error(
        run(&session, &f32s(&[1.0, 2.0]), &options),
        ErrorKind::Cancelled,
        &["device toy:0", "cancelled"],
    );
    assert_eq!(count.load(Ordering::SeqCst), 2, "launches after the second");
    // A flag stays set: the next run does not begin.
    expect_error(run(&session, &f32s(&[1.0, 2.0]), &options), ErrorKind::Cancelled, &[]);
    assert_eq!(count.load(Ordering::SeqCst), 2);
    // Nothing of it is left in the session.
    assert_eq!(run(&session, &f32s(&[1.0, 2.0]), &RunOptions::default()).unwrap(), [6.0, 7.0]);
}

#[test]
fn a_deadline_ends_a_run_between_launches() {
    let runtime = runtime();
    let session = Session::new(&five_hooks(2), &runtime.devices()[0]).unwrap();
    let (count, body) = counting(|_| std::thread::sleep(Duration::from_millis(40)));
    hook(2, body);
    let within = |deadline| RunOptions { deadline: Some(deadline), ..RunOptions::default() };
    let x = f32s(&[1.0, 2.0]);
    expect_error(
        run(&session, &x, &within(Duration::from_millis(60))),
        ErrorKind::DeadlineExceeded,
        &["the deadline passed before the run ended", "device toy:0"],
    );
    let launched = count.load(Ordering::SeqCst);
    assert!((1..5).contains(&launched), "expected some launches, found {launched}");
    // A deadline is the run's own: the next has all of its time.
    assert_eq!(run(&session, &x, &within(Duration::from_secs(60))).unwrap(), [6.0, 7.0]);
    assert_eq!(run(&session, &x, &within(Duration::MAX)).unwrap(), [6.0, 7.0]);
}

#[test]
fn many_threads_share_a_session() {
    let runtime = runtime();
    let steps = ["%a = Relu@14(%x)", "%b = test.Hook@1(%a) {hook = 3}", "%c = Relu@14(%b)", "return %c"];
    let session = Session::new(&model("f32[n]", &steps), &runtime.devices()[1]).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let session = &session;
            scope.spawn(move || {
                for i in 0..200 {
                    // Own numbers, and one of three shapes.
                    let x: Vec<f32> = (0..=i % 3).map(|k| (thread * 1000 + i + k) as f32 - 1500.0).collect();
                    let expected: Vec<f32> = x.iter().map(|x| x.max(0.0) + 1.0).collect();
                    assert_eq!(run(session, &f32s(&x), &RunOptions::default()).unwrap(), expected);
                }
            });
        }
    });
}

#[test]
fn plans_follow_shapes_and_are_bounded() {
    let runtime = runtime();
    let device = &runtime.devices()[0];
    let model = model("f32[n]", &["%y = Relu@14(%x)", "return %y"]);
    let session = Session::new(&model, device).unwrap();
    for n in (1..=40).chain(1..=40) {
        let x: Vec<f32> = (0..n).map(|i| i as f32).collect();
        assert_eq!(run(&session, &f32s(&x), &RunOptions::default()).unwrap(), x);
    }
    assert_eq!(model.on_device(device).unwrap().plans().len(), 16);
}

#[test]
fn a_vendors_op_is_planned_with_its_own_types() {
    let runtime = runtime();
    let steps = ["%y = test.Repeat@2(%x) as \"twice\" {times = 2}", "%z = Relu@14(%y)", "return %z"];
    let model = model("f32[n]", &steps);
    let session = Session::new(&model, &runtime.devices()[0]).unwrap();
    let x = f32s(&[1.0, -2.0, 3.0]);
    assert_eq!(run(&session, &x, &RunOptions::default()).unwrap(), [1.0, 0.0, 3.0, 1.0, 0.0, 3.0]);
    let plan = session.plan_for(&[("x", &x)]).unwrap();
    assert!(
        plan.single().is_some(),
        "expected one line: the kernel tells the types when the model is planned"
    );
}

#[test]
fn a_vendors_op_that_cannot_be_says_why() {
    let runtime = runtime();
    let device = &runtime.devices()[0];
    let open = |statement: &str| Session::new(&model("f32[3]", &[statement, "return %y"]), device);
    expect_error(
        open("%y = test.Repeat@2(%x) as \"none\" {times = 0}"),
        ErrorKind::InvalidModel,
        &["node none (test.Repeat@2)", "times is 0, expected 1 or more"],
    );
    expect_error(
        open("%y: f32[3] = test.Soften@1(%x) as \"soft\""),
        ErrorKind::UnsupportedOp,
        &[
            "node soft (test.Soften@1)",
            "device toy:0",
            "plugin toy 1 has no kernel for op test.Soften@1; to run it, add a device whose plugin takes it, or export the model \
             with ONNX's own ops",
        ],
    );
    // Versions of a vendor's op are the vendor's: only the same one will do.
    expect_error(
        open("%y: f32[3] = test.Repeat@3(%x) as \"newer\""),
        ErrorKind::UnsupportedOp,
        &["node newer (test.Repeat@3)", "kernel Repeat@2: it implements version 2"],
    );
    let error =
        Session::new(&model("f64[3]", &["%y = Relu@14(%x) as \"wide\"", "return %y"]), device).map(|_| ());
    expect_error(error, ErrorKind::UnsupportedOp, &["node wide (Relu@14)", "kernel Relu@14: ", "f64"]);
}

#[test]
fn shapes_may_depend_on_data() {
    let runtime = runtime();
    // The positions' number is known when they are there; the vendor's op behind them is planned then.
    let steps = ["%p = NonZero@13(%x) as \"find\"", "%y = test.Repeat@2(%p) {times = 2}", "return %y, %p"];
    let session = Session::new(&model("f32[n]", &steps), &runtime.devices()[0]).unwrap();
    for (x, expected) in [
        (&[0.0, 5.0, 0.0, 7.0][..], &[1i64, 3, 1, 3][..]),
        (&[1.0, 1.0, 1.0], &[0, 1, 2, 0, 1, 2]),
        (&[0.0, 0.0], &[]),
        (&[0.0, 5.0, 0.0, 7.0], &[1, 3, 1, 3]),
    ] {
        let outputs = session.run(&[("x", &f32s(x))]).unwrap();
        assert_eq!(outputs[0].elements::<i64>(), Some(expected), "{x:?}");
        assert_eq!(outputs[0].shape(), [expected.len()]);
        assert_eq!(outputs[1].shape(), [1, expected.len() / 2]);
    }
}

#[test]
fn bits_are_seen_as_another_type() {
    let runtime = runtime();
    // 6 is ONNX's number of i32; the constant is folded, the input's bytes stay where they are.
    let steps = [
        "%c = const f32[2] [1, -2]",
        "%folded = BitCast@26(%c) {to = 6}",
        "%y = BitCast@26(%x) {to = 6}",
        "return %y, %folded",
    ];
    let session = Session::new(&model("f32[n]", &steps), &runtime.devices()[0]).unwrap();
    let outputs = session.run(&[("x", &f32s(&[1.0, -2.0]))]).unwrap();
    let bits = [1.0f32, -2.0].map(|x| x.to_bits().cast_signed());
    for output in outputs.iter() {
        assert_eq!(output.elements::<i32>(), Some(&bits[..]));
    }
}

#[test]
fn ops_run_one_at_a_time() {
    let runtime = runtime();
    let device = &runtime.devices()[0];
    let x = f32s(&[1.0, -2.0, 0.0]);
    let y = eager::run(device, "Relu", &[], &[&x], 1).unwrap();
    assert_eq!(y[0].elements::<f32>(), Some(&[1.0, 0.0, 0.0][..]));
    let p = eager::run(device, "NonZero", &[], &[&x], 1).unwrap();
    assert_eq!((p[0].shape(), p[0].elements::<i64>()), (&[1, 2][..], Some(&[0, 1][..])));
    // Queries and views need no kernel.
    let shape = eager::run(device, "Shape", &[], &[&x], 1).unwrap();
    assert_eq!(shape[0].elements::<i64>(), Some(&[3][..]));
    let flat = eager::run(device, "Flatten", &[("axis", AttrValue::Int(0))], &[&x], 1).unwrap();
    assert_eq!(flat[0].shape(), [1, 3]);

    let unknown = eager::run(device, "Frobnicate", &[], &[&x], 1);
    expect_error(unknown, ErrorKind::UnsupportedOp, &["there is no op Frobnicate in the catalogue"]);
    let missing = eager::run(device, "Neg", &[], &[&x], 1);
    expect_error(
        missing,
        ErrorKind::UnsupportedOp,
        &["plugin toy 1 has no kernel for op Neg@13", "device toy:0"],
    );
    let none = eager::run(device, "Relu", &[], &[], 1);
    assert!(none.is_err(), "expected an error without operands");
}

#[test]
fn what_the_model_does_not_take_is_refused_though_it_was_planned() {
    let runtime = runtime();
    let device = &runtime.devices()[0];
    let model = model("f32[2]", &["%y = Relu@14(%x)", "return %y"]);
    let session = Session::new(&model, device).unwrap();
    // Past the session, which would refuse these.
    let unit = model.on_device(device).unwrap();
    unit.plan_for([(F32, &[3][..])].into_iter()).unwrap();
    assert_eq!(unit.plans().len(), 2);
    let x = f32s(&[-1.0, 2.0, 3.0]);
    let given = session.run_into(&[InputView::of(&x)], &mut [&mut [0u8; 12][..]], &RunOptions::default());
    expect_error(given, ErrorKind::InvalidInput, &["input `x` f32[2] is given as f32[3]"]);
}

#[test]
fn memory_of_the_callers_need_not_be_aligned() {
    let runtime = runtime();
    let model = model("f32[2]", &["%y = Relu@14(%x)", "return %y, %x, %y"]);
    let session = Session::new(&model, &runtime.devices()[0]).unwrap();
    let x = f32s(&[-1.0, 2.0]);
    let y = f32s(&[0.0, 2.0]);
    // Aligned in between, and again: frames are pointed elsewhere and back.
    for (of_input, of_output) in [(0, 0), (1, 0), (0, 0), (0, 1), (0, 0), (3, 2), (0, 0)] {
        let mut memory = AlignedBytes::zeroed(4 * 16).unwrap();
        let memory = memory.as_mut_slice();
        let (input, outputs) = memory.split_at_mut(16);
        let input = &mut input[of_input..of_input + 8];
        input.copy_from_slice(x.bytes());
        let [a, b, c] = outputs.as_chunks_mut::<16>().0 else { panic!("three results") };
        let end = of_output + 8;
        let mut results = [&mut a[of_output..end], &mut b[of_output..end], &mut c[of_output..end]];
        let input = InputView::new(x.dtype(), x.shape(), input).unwrap();
        session.run_into(&[input], &mut results, &RunOptions::default()).unwrap();
        assert_eq!(results, [y.bytes(), x.bytes(), y.bytes()], "{of_input}, {of_output}");
    }
}

/// Two inputs whose extents are open: some fit each other, and others do not. A model that is wrong for all is the model's fault.
#[test]
fn extents_that_do_not_fit_each_other_are_the_inputs_fault() {
    let runtime = runtime();
    let session = |y: &str| {
        let text = format!(
            "devbay-program 1\n\nprogram \"p\"(%x: f32[n], %y: f32[{y}]) {{\n  %z: f32[k] = Add@14(%x, %y)\n  return %z\n}}\n"
        );
        Session::new(&Model::from_text(&text).unwrap(), &runtime.devices()[0]).unwrap()
    };
    let (two, three) = (f32s(&[1.0; 2]), f32s(&[1.0; 3]));
    expect_error(
        session("m").run(&[("x", &two), ("y", &three)]),
        ErrorKind::InvalidInput,
        &["the inputs are f32[2], f32[3]"],
    );
}

#[test]
fn memory_of_the_callers_has_the_results_size() {
    let runtime = runtime();
    let model = model("f32[2]", &["%y = Relu@14(%x)", "return %y"]);
    let session = Session::new(&model, &runtime.devices()[0]).unwrap();
    let x = f32s(&[-1.0, 2.0]);
    let into = |inputs: &[InputView<'_>], size: usize| {
        let mut memory = vec![0u8; size];
        session.run_into(inputs, &mut [&mut memory[..]], &RunOptions::default()).map(|()| memory)
    };
    let good = into(&[InputView::of(&x)], 8).unwrap();
    assert_eq!(good, f32s(&[0.0, 2.0]).bytes());
    expect_error(
        into(&[InputView::of(&x)], 12),
        ErrorKind::InvalidArgument,
        &["memory of 12 bytes for result 0, expected 8"],
    );
    expect_error(into(&[], 8), ErrorKind::InvalidInput, &["0 inputs are given, the model takes 1"]);
    // A view that promises more than it has.
    let short = InputView::new(x.dtype(), x.shape(), &x.bytes()[..4]);
    expect_error(short, ErrorKind::InvalidInput, &["f32[2] needs 8 bytes, given are 4"]);

    // Bound to memory once, for many runs.
    let mut memory = vec![0u8; 8];
    let bytes = x.bytes().to_vec();
    let view = InputView::new(x.dtype(), x.shape(), &bytes).unwrap();
    let mut bound =
        session.bind(&[view], &mut [&mut memory[..]]).unwrap().expect("a device in the caller's memory");
    bound.run(None).unwrap();
    bound.run(None).unwrap();
    drop(bound);
    assert_eq!(memory, f32s(&[0.0, 2.0]).bytes());
}

#[test]
fn devices_are_chosen_by_policy_and_requirements() {
    let runtime = runtime();
    let relu = model("f32[2]", &["%y = Relu@14(%x) as \"r\"", "return %y"]);
    let neg = model("f32[2]", &["%y = Neg@13(%x) as \"n\"", "return %y"]);
    let both = model("f32[2]", &["%t = Neg@13(%x) as \"n\"", "%y = Relu@14(%t) as \"r\"", "return %y"]);
    let of =
        |model: &'static Model| Requirements { program: Some(model.program()), ..Requirements::default() };
    let [relu, neg, both] = [relu, neg, both].map(|model| &*Box::leak(Box::new(model)));
    let choose = |policy: &str, requirements: &Requirements<'_>| {
        let choice = runtime.choose(&Policy::parse(policy).unwrap(), requirements).unwrap();
        let lines: Vec<String> = choice
            .verdicts
            .iter()
            .map(|v| format!("{}{}: {}", if v.chosen { "* " } else { "" }, v.device, v.reason))
            .collect();
        (choice.device.name().to_owned(), lines)
    };
    // Accelerators come before processors.
    let (device, lines) = choose("auto", &of(relu));
    assert_eq!(device, "toy:0");
    assert_eq!(
        lines,
        [
            "* toy:0: first in the order of kinds that meets the requirements: npu",
            "toy:1: would do; toy:0 comes first in the order",
            "plain:0: it has no kernel for Relu@14 (node r (Relu@14))",
        ]
    );
    assert_eq!(choose("auto", &of(neg)).0, "plain:0");
    assert_eq!(choose("prefer:cpu", &Requirements::default()).0, "plain:0");
    assert_eq!(choose("prefer:cpu", &of(relu)).0, "toy:0");
    assert_eq!(choose("prefer:gpu", &of(relu)).0, "toy:0");
    assert_eq!(choose("toy", &Requirements::default()).0, "toy:0");
    assert_eq!(choose("toy:1", &Requirements::default()).0, "toy:1");
    assert_eq!(choose("toy/serial-1", &Requirements::default()).0, "toy:1");
    let large = Requirements { memory: 1 << 24, ..of(relu) };
    let (device, lines) = choose("auto", &large);
    assert_eq!(device, "toy:1");
    assert_eq!(lines[0], "toy:0: it has 1048576 bytes of memory, 16777216 are wanted");

    let error = expect_error(
        runtime.choose(&Policy::Auto, &of(both)).map(|_| ()),
        ErrorKind::UnsupportedOp,
        &["no device meets the requirements"],
    );
    for words in
        ["toy:0: it has no kernel for Neg@13 (node n (Neg@13))", "plain:0: it has no kernel for Relu@14"]
    {
        assert!(error.to_string().contains(words), "{error}");
    }
    let named = runtime.choose(&Policy::parse("toy:2").unwrap(), &Requirements::default()).map(|_| ());
    expect_error(named, ErrorKind::NotFound, &["there is no device toy:2; there are: toy:0, toy:1, plain:0"]);
}

#[test]
fn without_a_device_the_reasons_are_given() {
    let none = Runtime::builder().threads(1).build().unwrap();
    let choose = |runtime: &Runtime, policy: &str| {
        runtime.choose(&Policy::parse(policy).unwrap(), &Requirements::default()).map(|_| ())
    };
    expect_error(choose(&none, "auto"), ErrorKind::NotFound, &["there is no device: no plugin was loaded"]);
    expect_error(choose(&none, "cpu"), ErrorKind::NotFound, &["there is no device"]);

    let refused = |key: &str, value: &str| {
        let option = ("toy".to_owned(), key.to_owned(), value.to_owned());
        let linked = vec![toy::devbay_entry::PLUGIN];
        Runtime::builder().threads(1).link_all(linked).options([option]).build().unwrap()
    };
    for policy in ["auto", "toy:0", "prefer:npu"] {
        let words = ["refused", "the toy is in a bad mood"];
        expect_error(choose(&refused("mood", "bad"), policy), ErrorKind::Refused, &words);
        expect_error(choose(&refused("colour", "red"), policy), ErrorKind::Refused, &["refused", "colour"]);
    }
    // The linked plugin twice: the first one wins, and the report says so.
    let linked = vec![toy::devbay_entry::PLUGIN, toy::devbay_entry::PLUGIN];
    let twice = Runtime::builder().threads(1).link_all(linked).build().unwrap();
    assert_eq!(twice.devices().len(), 2);
    let reasons: Vec<String> = twice.report().refused().map(|(_, refusal)| refusal.reason.clone()).collect();
    assert_eq!(reasons.len(), 1);
    assert!(reasons[0].contains("a plugin called toy was loaded before"), "{reasons:?}");
}

#[test]
fn a_model_file_is_read_once() {
    let path = std::env::temp_dir().join(format!("devbay-session-{}.devbay", std::process::id()));
    let source = "devbay-program 1\n\nprogram \"p\"(%x: f32[2]) {\n  %y = Relu@14(%x)\n  return %y\n}\n";
    std::fs::write(&path, source).unwrap();
    let (first, second) = (Model::load(&path).unwrap(), Model::load(&path).unwrap());
    assert!(std::ptr::eq(first.program(), second.program()), "expected one program");
    let runtime = runtime();
    let units = [&first, &second].map(|model| model.on_device(&runtime.devices()[0]).unwrap());
    assert!(Arc::ptr_eq(&units[0], &units[1]), "expected one set of plans and packed constants");
    std::fs::remove_file(&path).unwrap();
}
