//! A plugin that gathers launches is told to begin within a task, by the work that was enqueued, where a session asks for it.

use devbay_host::internals::core::program::text;
use devbay_host::{Model, PlanOptions, Runtime, Session, SessionOptions, Tensor};

/// A plugin whose streams note when they are flushed.
mod gatherer {
    use devbay_plugin_api::abi::{
        DEVBAY_DEVICE_HOST_REFS, DEVBAY_DEVICE_KIND_CPU, DEVBAY_SPACE_ADDRESSABLE, DEVBAY_SPACE_HOST_VISIBLE,
    };
    use devbay_plugin_api::locks::lock;
    use devbay_plugin_api::sdk::*;
    use std::sync::Mutex;
    use std::time::Duration;

    /// Requests to streams: launches since the last signal at each flush, and at each signal.
    #[derive(Debug, Default)]
    pub struct Seen {
        n_launches: usize,
        pub flushes: Vec<usize>,
        pub signals: Vec<usize>,
    }

    pub static SEEN: Mutex<Seen> =
        Mutex::new(Seen { n_launches: 0, flushes: Vec::new(), signals: Vec::new() });

    fn see<R>(look: impl FnOnce(&mut Seen) -> R) -> R {
        look(&mut lock(&SEEN))
    }

    pub struct Gatherer(GathererDevice);
    pub struct GathererDevice(DeviceDesc);
    pub struct GathererStream(Timeline);

    impl Plugin for Gatherer {
        type Device = GathererDevice;
        const ABOUT: About = About { name: "gatherer", vendor: "tests", version: "1", ..About::DEFAULT };
        const KERNELS: &'static [Kernel<GathererDevice>] = &[
            of_cost("Long", |_| Ok(Cost { flops: 1 << 40, bytes_read: 8, bytes_written: 8 })),
            of_cost("Short", |_| Ok(Cost { flops: 1, bytes_read: 8, bytes_written: 8 })),
        ];

        fn create(_host: Host, _options: &Options<'_>) -> Result<Self> {
            let flags = DEVBAY_SPACE_HOST_VISIBLE | DEVBAY_SPACE_ADDRESSABLE;
            Ok(Self(GathererDevice(DeviceDesc {
                kind: DEVBAY_DEVICE_KIND_CPU,
                id: "0".to_owned(),
                name: "gatherer".to_owned(),
                inline: false,
                flags: DEVBAY_DEVICE_HOST_REFS,
                spaces: vec![SpaceDesc { flags, ..SpaceDesc::default() }],
                ..DeviceDesc::default()
            })))
        }

        fn devices(&self) -> Result<Vec<&GathererDevice>> {
            Ok(vec![&self.0])
        }
    }

    const I64S: &[TypeVar] = &[TypeVar::of(&[I64])];

    const fn of_cost(
        op: &'static str,
        cost: fn(&PrepareRequest<'_, GathererDevice>) -> Result<Cost>,
    ) -> Kernel<GathererDevice> {
        Kernel::new(op, 1, |_| Ok(Prepared::new(Next)))
            .domain("test")
            .types(I64S)
            .operands(&[0], &[0])
            .cost(cost)
            .shape(|_, _| Ok((I64, vec![1])))
    }

    impl Device for GathererDevice {
        type Buffer = HostBuffer;
        type Stream = GathererStream;

        fn describe(&self) -> &DeviceDesc {
            &self.0
        }

        fn alloc(&self, request: &AllocRequest<'_>) -> Result<Allocated<HostBuffer>> {
            HostBuffer::alloc(request)
        }

        fn create_stream(&self, _request: &StreamRequest<'_>) -> Result<GathererStream> {
            Ok(GathererStream(Timeline::default()))
        }
    }

    /// All is done when it is enqueued.
    impl Stream for GathererStream {
        type Buffer = HostBuffer;
        const TIMELINE: bool = true;
        const ON_REACHED: bool = true;
        const HOST_WAIT: bool = true;
        const FLUSH: bool = true;

        fn copy(&self, copy: &CopyRequest<'_, HostBuffer>) -> Result<()> {
            copy.run_on_host();
            Ok(())
        }

        fn signal(&self, value: u64) -> Result<()> {
            see(|seen| {
                let n_launches = std::mem::take(&mut seen.n_launches);
                seen.signals.push(n_launches);
            });
            self.0.signal(value)?;
            self.0.reach(value);
            Ok(())
        }

        fn reached(&self) -> (u64, Result<()>) {
            self.0.reached()
        }

        fn on_reached(&self, value: u64, done: Done) -> Result<()> {
            self.0.on_reached(value, done)
        }

        fn host_wait(&self, value: u64, timeout: Duration) -> Result<()> {
            self.0.host_wait(value, timeout)
        }

        fn flush(&self) -> Result<()> {
            see(|seen| seen.flushes.push(seen.n_launches));
            Ok(())
        }
    }

    /// The next number.
    struct Next;

    impl Launch<GathererDevice> for Next {
        fn launch(&self, _stream: &GathererStream, operands: &mut Operands<'_>) -> Result<()> {
            see(|seen| seen.n_launches += 1);
            operands.output::<i64>(0)[0] = operands.input::<i64>(0)[0] + 1;
            Ok(())
        }
    }

    devbay_plugin_api::static_plugin!(Gatherer);
}

/// Runs a chain of ops twice, and gives the number of launches behind which its second run flushed.
fn flushes_of(ops: &[&str], flushes: bool) -> Vec<usize> {
    let linked = vec![gatherer::devbay_entry::PLUGIN];
    let runtime = Runtime::builder().link_all(linked).build().unwrap();
    let nodes: String =
        (1..).zip(ops).map(|(at, op)| format!("  %v{at}: i64[1] = test.{op}@1(%v{})\n", at - 1)).collect();
    let source = format!(
        "devbay-program 1\n\nprogram \"chain\"(%v0: i64[1]) {{\n{nodes}  return %v{}\n}}\n",
        ops.len()
    );
    let model = Model::from_program(text::parse(&source).unwrap());
    let plans = PlanOptions { flushes, ..PlanOptions::default() };
    let options = SessionOptions { plans, ..SessionOptions::default() };
    let session = Session::with_options(&model, &runtime.devices()[0], options).unwrap();
    let x = Tensor::from_elements(&[1], &[40i64]).unwrap();
    let mut behind = Vec::new();
    for _ in 0..2 {
        *gatherer::SEEN.lock().unwrap() = gatherer::Seen::default();
        let results = session.run(&[("v0", &x)]).unwrap();
        assert_eq!(results[0].elements::<i64>().unwrap(), [40 + ops.len() as i64]);
        let seen = std::mem::take(&mut *gatherer::SEEN.lock().unwrap());
        assert!(seen.signals.contains(&ops.len()), "one task: {seen:?}");
        behind = seen.flushes;
    }
    behind
}

#[test]
fn a_long_task_is_flushed_behind_as_much_work_as_before() {
    assert_eq!(flushes_of(&["Long"; 10], true), [1, 2, 4, 8]);
    // Only where the session asks for it.
    assert_eq!(flushes_of(&["Long"; 10], false), [0usize; 0]);
    // The rest is not worth a flush.
    assert_eq!(flushes_of(&["Long", "Short", "Long", "Short", "Short"], true), [1]);
    assert_eq!(flushes_of(&["Short"; 20], true), [0usize; 0]);
}
