//! Devices that are lost, taken out, added and put in again while a runtime lives.

use devbay_host::internals::core::program::text;
use devbay_host::{Error, ErrorKind, Model, Policy, Requirements, Rescan, Runtime, Session, Tensor};
use devbay_plugin_api::abi::{
    DEVBAY_DEVICE_HOST_REFS, DEVBAY_SPACE_ADDRESSABLE, DEVBAY_SPACE_HOST_VISIBLE, DEVBAY_STATUS_DEVICE_LOST,
};
use devbay_plugin_api::sdk::{
    self, About, AllocRequest, Allocated, CopyRequest, DeviceDesc, DeviceSet, F32, Host, HostBuffer, Kernel,
    Launch, Listed, Operands, Options, Plugin, PluginOption, PrepareRequest, Prepared, SpaceDesc, Stream,
    StreamRequest, TypeVar,
};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// Contents of a dock's slots.
#[derive(Default)]
struct Slots {
    units: Vec<Unit>,
    /// True if the list of devices fails.
    silent: bool,
    /// Lost units are listed as they were, which is wrong.
    forgetful: bool,
}

/// A unit in its slot; another one when it is put in again.
#[derive(Clone)]
struct Unit {
    id: &'static str,
    works: Arc<AtomicBool>,
}

static DOCKS: Mutex<BTreeMap<String, Slots>> = Mutex::new(BTreeMap::new());

fn docks() -> MutexGuard<'static, BTreeMap<String, Slots>> {
    DOCKS.lock().expect("nothing panics under the lock")
}

/// The plugin: lists what is in the dock of its option's name.
struct Dock {
    name: String,
    devices: DeviceSet<DockDevice>,
}

struct DockDevice {
    unit: Unit,
    desc: DeviceDesc,
}

impl DockDevice {
    fn check(&self) -> sdk::Result<()> {
        match self.unit.works.load(Ordering::SeqCst) {
            true => Ok(()),
            false => Err(sdk::Error::new(DEVBAY_STATUS_DEVICE_LOST, "nothing is in the slot")),
        }
    }
}

impl Plugin for Dock {
    type Device = DockDevice;
    const ABOUT: About = About {
        name: "dock",
        vendor: "tests",
        version: "1",
        options: &[PluginOption { key: "name", default: "", doc: "which dock" }],
        ..About::DEFAULT
    };
    const KERNELS: &'static [Kernel<DockDevice>] =
        &[Kernel::new("Neg", 13, |request: &PrepareRequest<'_, DockDevice>| {
            Ok(Prepared::new(Negate(request.device.unit.works.clone())))
        })
        .types(&[TypeVar::of(&[F32])])
        .operands(&[0], &[0])];

    fn create(_host: Host, options: &Options<'_>) -> sdk::Result<Self> {
        Ok(Self { name: options.get("name").to_owned(), devices: DeviceSet::default() })
    }

    fn devices(&self) -> sdk::Result<Vec<&DockDevice>> {
        self.devices.update(|known| {
            let docks = docks();
            let slots = &docks[&self.name];
            if slots.silent {
                return Err(sdk::Error::unavailable("the dock does not answer"));
            }
            let is = |device: &&DockDevice, unit: &Unit| Arc::ptr_eq(&device.unit.works, &unit.works);
            let listed =
                slots.units.iter().filter(|unit| slots.forgetful || unit.works.load(Ordering::SeqCst));
            let listed = listed.map(|unit| match known.iter().position(|device| is(device, unit)) {
                Some(place) => Listed::Stays(place),
                None => Listed::New(device(unit)),
            });
            Ok(listed.collect())
        })
    }
}

fn device(unit: &Unit) -> DockDevice {
    let flags = DEVBAY_SPACE_HOST_VISIBLE | DEVBAY_SPACE_ADDRESSABLE;
    let desc = DeviceDesc {
        id: unit.id.to_owned(),
        name: format!("unit {}", unit.id),
        inline: true,
        flags: DEVBAY_DEVICE_HOST_REFS,
        spaces: vec![SpaceDesc { flags, ..SpaceDesc::default() }],
        ..DeviceDesc::default()
    };
    DockDevice { unit: unit.clone(), desc }
}

impl sdk::Device for DockDevice {
    type Buffer = HostBuffer;
    type Stream = DockStream;

    fn describe(&self) -> &DeviceDesc {
        &self.desc
    }

    fn alloc(&self, request: &AllocRequest<'_>) -> sdk::Result<Allocated<HostBuffer>> {
        self.check()?;
        HostBuffer::alloc(request)
    }

    fn create_stream(&self, _request: &StreamRequest<'_>) -> sdk::Result<DockStream> {
        self.check()?;
        Ok(DockStream)
    }
}

struct DockStream;

impl Stream for DockStream {
    type Buffer = HostBuffer;

    fn copy(&self, copy: &CopyRequest<'_, HostBuffer>) -> sdk::Result<()> {
        copy.run_on_host();
        Ok(())
    }
}

struct Negate(Arc<AtomicBool>);

impl Launch<DockDevice> for Negate {
    fn launch(&self, _stream: &DockStream, operands: &mut Operands<'_>) -> sdk::Result<()> {
        if !self.0.load(Ordering::SeqCst) {
            return Err(sdk::Error::new(DEVBAY_STATUS_DEVICE_LOST, "nothing is in the slot"));
        }
        let negated: Vec<f32> = operands.input::<f32>(0).iter().map(|x| -x).collect();
        operands.output::<f32>(0).copy_from_slice(&negated);
        Ok(())
    }
}

mod entry {
    use super::Dock;
    devbay_plugin_api::static_plugin!(Dock);
}

fn unit(id: &'static str) -> Unit {
    Unit { id, works: Arc::new(AtomicBool::new(true)) }
}

fn put_in(dock: &str, id: &'static str) {
    docks().entry(dock.to_owned()).or_default().units.push(unit(id));
}

fn take_out(dock: &str, id: &str) {
    let mut docks = docks();
    let units = &mut docks.get_mut(dock).expect("a dock").units;
    units.extract_if(.., |unit| unit.id == id).for_each(|unit| unit.works.store(false, Ordering::SeqCst));
}

/// A runtime with the units `a` and `b`.
fn runtime(dock: &str) -> Runtime {
    put_in(dock, "a");
    put_in(dock, "b");
    Runtime::builder()
        .threads(2)
        .link(entry::devbay_entry::PLUGIN)
        .option("dock", "name", dock)
        .build()
        .expect("a runtime")
}

fn session(runtime: &Runtime, device: &str) -> Session {
    let source = "devbay-program 1\n\nprogram \"one\"(%x: f32[2]) {\n  %y = Neg@13(%x)\n  return %y\n}\n";
    let model = Model::from_program(text::parse(source).expect("a program"));
    let chosen = runtime.choose(&Policy::Explicit(device.to_owned()), &Requirements::default());
    Session::new(&model, &chosen.expect("a device").device).expect("a session")
}

fn run(session: &Session) -> Result<Vec<f32>, Error> {
    let x = Tensor::from_elements(&[2], &[1.0f32, -2.0]).expect("a tensor");
    let results = session.run(&[("x", &x)])?;
    Ok(results[0].elements::<f32>().expect("floats").to_vec())
}

fn names(runtime: &Runtime) -> Vec<String> {
    runtime.devices().iter().map(|device| device.name().to_owned()).collect()
}

/// Names of what came and went.
fn said(found: &Rescan) -> (Vec<&str>, Vec<&str>) {
    (
        found.added.iter().map(|device| device.name()).collect(),
        found.gone.iter().map(|device| device.name()).collect(),
    )
}

#[test]
fn b29_what_comes_back_is_a_new_device_with_the_old_name() {
    let runtime = runtime("back");
    assert_eq!(names(&runtime), ["dock:0", "dock:1"]);
    let (a, b) = (session(&runtime, "dock:0"), session(&runtime, "dock:1"));
    assert_eq!((run(&a).expect("a run"), run(&b).expect("a run")), (vec![-1.0, 2.0], vec![-1.0, 2.0]));
    assert_eq!(said(&runtime.rescan()), (vec![], vec![]));

    take_out("back", "a");
    let before = runtime.devices();
    assert_eq!(run(&a).expect_err("the unit is gone").kind(), ErrorKind::DeviceLost);
    assert_eq!(run(&b).expect("the other one is there"), [-1.0, 2.0]);
    assert_eq!(said(&runtime.rescan()), (vec![], vec!["dock:0"]));
    assert_eq!(names(&runtime), ["dock:1"]);
    assert!(before[0].is_lost() && Arc::ptr_eq(&before[1], &runtime.devices()[0]));

    // Another one has the next number, and one that comes back its own.
    put_in("back", "c");
    assert_eq!(said(&runtime.rescan()), (vec!["dock:2"], vec![]));
    put_in("back", "a");
    assert_eq!(said(&runtime.rescan()), (vec!["dock:0"], vec![]));
    assert_eq!(names(&runtime), ["dock:1", "dock:2", "dock:0"]);
    assert_eq!(runtime.devices()[2].stable_id(), "dock/a");
    assert_eq!(run(&session(&runtime, "dock:0")).expect("it is back"), [-1.0, 2.0]);
    assert_eq!(run(&a).expect_err("the old device stays lost").kind(), ErrorKind::DeviceLost);
    assert_eq!(run(&b).expect("the other one was there all the time"), [-1.0, 2.0]);
}

/// A device that is taken out and was not used meanwhile: its sessions are told, and no function of it is called.
#[test]
fn who_is_listed_no_more_is_lost_to_its_sessions() {
    let runtime = runtime("unused");
    let a = session(&runtime, "dock:0");
    let device = runtime.devices()[0].clone();
    take_out("unused", "a");
    assert!(!device.is_lost());
    runtime.rescan();
    assert!(device.is_lost());
    assert_eq!(run(&a).expect_err("the unit is gone").kind(), ErrorKind::DeviceLost);
    assert_eq!(device.alloc(16, 0).map(drop).expect_err("the unit is gone").kind(), ErrorKind::DeviceLost);
}

#[test]
fn a_plugin_that_cannot_say_keeps_its_devices() {
    let runtime = runtime("silent");
    let b = session(&runtime, "dock:1");
    docks().get_mut("silent").expect("a dock").silent = true;
    let found = runtime.rescan();
    assert_eq!(said(&found), (vec![], vec![]));
    assert!(
        found.notes[0].contains("plugin dock") && found.notes[0].contains("does not answer"),
        "{:?}",
        found.notes
    );
    assert_eq!(names(&runtime), ["dock:0", "dock:1"]);
    assert_eq!(run(&b).expect("a run"), [-1.0, 2.0]);
}

#[test]
fn b13_a_device_that_is_listed_as_it_was_lost_is_left_out() {
    let runtime = runtime("forgetful");
    let a = session(&runtime, "dock:0");
    docks().get_mut("forgetful").expect("a dock").units[0].works.store(false, Ordering::SeqCst);
    assert_eq!(run(&a).expect_err("the unit does not work").kind(), ErrorKind::DeviceLost);
    docks().get_mut("forgetful").expect("a dock").forgetful = true;
    let found = runtime.rescan();
    assert_eq!(said(&found), (vec![], vec!["dock:0"]));
    assert!(found.notes[0].contains("dock:0") && found.notes[0].contains("B13"), "{:?}", found.notes);
    // It is said once.
    assert!(runtime.rescan().notes.is_empty());
    assert_eq!(names(&runtime), ["dock:1"]);
}

#[test]
fn b29_threads_look_while_others_run_and_units_come_and_go() {
    let runtime = runtime("busy");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(Ordering::SeqCst) {
                    let found = runtime.rescan();
                    assert!(found.notes.is_empty(), "{:?}", found.notes);
                    let names = names(&runtime);
                    assert!(names.contains(&"dock:1".to_owned()), "{names:?}");
                }
            });
        }
        scope.spawn(|| {
            // The second one is never taken out.
            let b = session(&runtime, "dock:1");
            while !done.load(Ordering::SeqCst) {
                assert_eq!(run(&b).expect("a run"), [-1.0, 2.0]);
            }
        });
        for _ in 0..100 {
            take_out("busy", "a");
            std::thread::yield_now();
            put_in("busy", "a");
            runtime.rescan();
            let device = runtime.devices().into_iter().find(|device| device.name() == "dock:0");
            assert!(!device.expect("it is back").is_lost());
        }
        done.store(true, Ordering::SeqCst);
    });
    assert_eq!(run(&session(&runtime, "dock:0")).expect("it is back"), [-1.0, 2.0]);
}
