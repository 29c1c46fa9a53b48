//! A compiler that takes long and asks whether it is still wanted ends with the load that it works for.

use devbay_host::internals::core::program::text;
use devbay_host::{Cancel, ErrorKind, Model, Result, Runtime, Session, Tensor};
use std::sync::atomic::Ordering;

/// A plugin whose compiler takes every node, and compiles until it is told to end.
mod patient {
    use devbay_plugin_api::abi::{
        DEVBAY_DEVICE_HOST_REFS, DEVBAY_DEVICE_KIND_CPU, DEVBAY_SPACE_ADDRESSABLE, DEVBAY_SPACE_HOST_VISIBLE,
    };
    use devbay_plugin_api::sdk::*;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Duration;

    /// True while a graph is being compiled.
    pub static COMPILES: AtomicBool = AtomicBool::new(false);

    pub struct Patient(PatientDevice);
    pub struct PatientDevice {
        desc: DeviceDesc,
        host: Host,
    }
    pub struct PatientStream;

    impl Plugin for Patient {
        type Device = PatientDevice;
        const ABOUT: About = About { name: "patient", vendor: "tests", version: "1", ..About::DEFAULT };
        const KERNELS: &'static [Kernel<PatientDevice>] = &[];

        fn create(host: Host, _options: &Options<'_>) -> Result<Self> {
            let flags = DEVBAY_SPACE_HOST_VISIBLE | DEVBAY_SPACE_ADDRESSABLE;
            let desc = DeviceDesc {
                kind: DEVBAY_DEVICE_KIND_CPU,
                id: "0".to_owned(),
                name: "patient".to_owned(),
                inline: true,
                flags: DEVBAY_DEVICE_HOST_REFS,
                spaces: vec![SpaceDesc { flags, ..SpaceDesc::default() }],
                ..DeviceDesc::default()
            };
            Ok(Self(PatientDevice { desc, host }))
        }

        fn devices(&self) -> Result<Vec<&PatientDevice>> {
            Ok(vec![&self.0])
        }
    }

    impl Device for PatientDevice {
        type Buffer = HostBuffer;
        type Stream = PatientStream;
        const GRAPHS: bool = true;

        fn describe(&self) -> &DeviceDesc {
            &self.desc
        }

        fn alloc(&self, request: &AllocRequest<'_>) -> Result<Allocated<HostBuffer>> {
            HostBuffer::alloc(request)
        }

        fn create_stream(&self, _request: &StreamRequest<'_>) -> Result<PatientStream> {
            Ok(PatientStream)
        }

        fn claim(&self, graph: &GraphView<'_>) -> Result<Vec<Option<Claim>>> {
            Ok(vec![Some(Claim { flops: 1, bytes: 1, group: 0 }); graph.nodes.len()])
        }

        fn compile_graph(&self, _request: &GraphRequest<'_>) -> Result<Box<dyn Executable<Self>>> {
            COMPILES.store(true, Ordering::Release);
            loop {
                self.host.check()?;
                std::thread::sleep(Duration::from_micros(200));
            }
        }
    }

    impl Stream for PatientStream {
        type Buffer = HostBuffer;

        fn copy(&self, copy: &CopyRequest<'_, HostBuffer>) -> Result<()> {
            copy.run_on_host();
            Ok(())
        }
    }

    devbay_plugin_api::static_plugin!(Patient);
}

const RELU: &str = r#"devbay-program 1

program "relu"(%x: f32[4]) {
  %y: f32[4] = Relu@14(%x)
  return %y
}
"#;

/// Loads and runs until another thread ends it, which it does once the compiler is at work.
fn ended_by(end: fn(&Cancel)) -> Result<()> {
    let linked = vec![patient::devbay_entry::PLUGIN];
    let runtime = Runtime::builder().link_all(linked).build()?;
    let device = &runtime.devices()[0];
    let model = Model::from_program(text::parse(RELU)?);
    let cancel = Cancel::new();
    patient::COMPILES.store(false, Ordering::Release);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !patient::COMPILES.load(Ordering::Acquire) {
                std::thread::yield_now();
            }
            end(&cancel);
        });
        Cancel::over(Some(&cancel), || {
            let session = Session::new(&model, device)?;
            let x = Tensor::from_elements(&[4], &[1.0f32; 4])?;
            session.run(&[("x", &x)]).map(drop)
        })
    })
}

#[test]
fn a_compiler_that_asks_ends_with_its_load() {
    let kind = |end| ended_by(end).map_err(|error| error.kind());
    assert_eq!(kind(Cancel::cancel), Err(ErrorKind::Cancelled));
    assert_eq!(kind(Cancel::expire), Err(ErrorKind::DeadlineExceeded));
}
