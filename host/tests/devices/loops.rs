//! Iterations of a loop of known length overlap, and no more of them than the bound says.
//!
//! The plugin is written on the SDK and linked. Its kernel takes a while, and notes which iterations are under way.

use devbay_host::internals::core::plan::tasks::Policy;
use devbay_host::internals::core::plan::unroll::ITERATIONS_AT_ONCE;
use devbay_host::internals::core::program::text;
use devbay_host::{Model, PlanOptions, Runtime, Session, Tensor};
use std::sync::atomic::Ordering;

/// A plugin with one kernel, whose launches say which iteration they are of.
mod turns {
    use devbay_plugin_api::abi::{
        DEVBAY_DEVICE_HOST_REFS, DEVBAY_DEVICE_KIND_CPU, DEVBAY_SPACE_ADDRESSABLE, DEVBAY_SPACE_HOST_VISIBLE,
    };
    use devbay_plugin_api::locks::lock;
    use devbay_plugin_api::sdk::*;
    use std::collections::BTreeMap;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    /// Iterations that have begun and not ended, with how many of their launches are to come.
    static OPEN: Mutex<BTreeMap<i64, usize>> = Mutex::new(BTreeMap::new());
    /// The most that were open at once.
    pub static MOST: AtomicUsize = AtomicUsize::new(0);
    /// Launches of an iteration.
    pub const LAUNCHES: usize = 2;

    pub struct Turns(TurnsDevice);
    pub struct TurnsDevice(DeviceDesc);
    pub struct TurnsStream;

    impl Plugin for Turns {
        type Device = TurnsDevice;
        const ABOUT: About = About { name: "turns", vendor: "tests", version: "1", ..About::DEFAULT };
        const KERNELS: &'static [Kernel<TurnsDevice>] =
            &[Kernel::new("Turn", 1, |_| Ok(Prepared::new(Turn)))
                .domain("test")
                .types(&[TypeVar::of(&[I64])])
                .operands(&[0, 0], &[0])
                .cost(|_| Ok(Cost { flops: 100_000_000, bytes_read: 8, bytes_written: 8 }))
                .shape(|_, _| Ok((I64, vec![1])))];

        fn create(_host: Host, _options: &Options<'_>) -> Result<Self> {
            let flags = DEVBAY_SPACE_HOST_VISIBLE | DEVBAY_SPACE_ADDRESSABLE;
            Ok(Self(TurnsDevice(DeviceDesc {
                kind: DEVBAY_DEVICE_KIND_CPU,
                id: "0".to_owned(),
                name: "turns".to_owned(),
                inline: true,
                flags: DEVBAY_DEVICE_HOST_REFS,
                spaces: vec![SpaceDesc { flags, ..SpaceDesc::default() }],
                ..DeviceDesc::default()
            })))
        }

        fn devices(&self) -> Result<Vec<&TurnsDevice>> {
            Ok(vec![&self.0])
        }
    }

    impl Device for TurnsDevice {
        type Buffer = HostBuffer;
        type Stream = TurnsStream;

        fn describe(&self) -> &DeviceDesc {
            &self.0
        }

        fn alloc(&self, request: &AllocRequest<'_>) -> Result<Allocated<HostBuffer>> {
            HostBuffer::alloc(request)
        }

        fn create_stream(&self, _request: &StreamRequest<'_>) -> Result<TurnsStream> {
            Ok(TurnsStream)
        }
    }

    impl Stream for TurnsStream {
        type Buffer = HostBuffer;

        fn copy(&self, copy: &CopyRequest<'_, HostBuffer>) -> Result<()> {
            copy.run_on_host();
            Ok(())
        }
    }

    /// The sum of a value and the iteration's number.
    struct Turn;

    impl Launch<TurnsDevice> for Turn {
        fn launch(&self, _stream: &TurnsStream, operands: &mut Operands<'_>) -> Result<()> {
            let (x, number) = (operands.input::<i64>(0)[0], operands.input::<i64>(1)[0]);
            let mut open = lock(&OPEN);
            open.entry(number).or_insert(LAUNCHES);
            MOST.fetch_max(open.len(), Ordering::Relaxed);
            drop(open);
            // Asleep, so that all threads can be here at once however few processors there are.
            std::thread::sleep(Duration::from_micros(200));
            operands.output::<i64>(0)[0] = x + number;
            let mut open = lock(&OPEN);
            if let Some(left) = open.get_mut(&number) {
                *left -= 1;
                if *left == 0 {
                    open.remove(&number);
                }
            }
            Ok(())
        }
    }

    devbay_plugin_api::static_plugin!(Turns);
}

/// Each of 64 iterations adds its number to a row, twice; none needs another.
const ROWS: &str = r#"devbay-program 1

program "rows"(%x: i64[64,1], %numbers: i64[64,1]) {
  %y: i64[64,1] = Scan@25(%x, %numbers) {num_scan_inputs = 2} body(%row: i64[1], %i: i64[1]) {
    %once: i64[1] = test.Turn@1(%row, %i)
    %twice: i64[1] = test.Turn@1(%once, %i)
    return %twice
  }
  return %y
}
"#;

#[test]
fn iterations_overlap_up_to_the_bound() {
    let linked = vec![turns::devbay_entry::PLUGIN];
    let runtime = Runtime::builder().threads(2 * ITERATIONS_AT_ONCE).link_all(linked).build().unwrap();
    let model = Model::from_program(text::parse(ROWS).unwrap());
    let numbers: Vec<i64> = (0..64).collect();
    let x: Vec<i64> = numbers.iter().map(|number| 1000 * number).collect();
    let expected: Vec<i64> = numbers.iter().map(|number| 1002 * number).collect();
    let tensor = |values: &[i64]| Tensor::from_elements(&[64, 1], values).unwrap();
    let (x, numbers) = (tensor(&x), tensor(&numbers));
    for tasks in [Policy::Each, Policy::Auto] {
        let options = PlanOptions { tasks, ..PlanOptions::default() };
        let session = Session::with_options(&model, &runtime.devices()[0], options).unwrap();
        let inputs = [("x", &x), ("numbers", &numbers)];
        let plan = session.plan_for(&inputs).unwrap();
        let section = &plan.single().expect("one section").section;
        assert_eq!(section.steps.len(), 64 * turns::LAUNCHES);
        // The bound is one on memory, too: a value of each iteration that may be under way.
        assert!(section.memory.arena <= ITERATIONS_AT_ONCE * 64, "{} bytes", section.memory.arena);
        for _ in 0..20 {
            let results = session.run(&inputs).unwrap();
            assert_eq!(results[0].elements::<i64>(), Some(&expected[..]), "{tasks:?}");
        }
    }
    let most = turns::MOST.load(Ordering::Relaxed);
    assert!(most > 1, "no two iterations were under way at once");
    assert!(most <= ITERATIONS_AT_ONCE, "{most} iterations were under way at once");
}
