//! Where nodes run when costs decide, on devices whose memories are their own: rates are made up, so that the answer is
//! known.

use crate::library::library;
use devbay_host::internals::core::kernel::Numerics;
use devbay_host::internals::core::passes::Switches;
use devbay_host::internals::core::plan::cost::{Link, Rates};
use devbay_host::internals::core::plan::feedback::{Feedback, signature};
use devbay_host::internals::core::plan::place::NodeTypes;
use devbay_host::internals::core::plan::work::WorkKind;
use devbay_host::internals::core::program::text;
use devbay_host::internals::core::tensor::BOOL;
use devbay_host::{
    Device, Error, ErrorKind, Model, PlaceBy, PlanOptions, Runtime, Session, SessionOptions, Tensor,
};
use std::sync::Arc;

/// A device whose launches take so long, with links that are the same for all.
const fn launches_of(launch_ns: f64) -> Rates {
    let link = Link { latency_ns: 1e4, bytes_per_ns: 1.0 };
    Rates {
        flops_per_ns: 1e9,
        bytes_per_ns: 1e9,
        launch_ns,
        hand_over_ns: 0.0,
        by_work: [None; WorkKind::ALL.len()],
        to_device: link,
        from_device: link,
    }
}

/// The processor, and two devices that share no memory with it or with each other.
struct World {
    runtime: Runtime,
}

impl World {
    /// With what a launch takes on each device, in nanoseconds.
    fn new(launches: [f64; 3], fault: &str) -> Self {
        let option = |key: &str, value: &str| ("faulty".to_owned(), key.to_owned(), value.to_owned());
        let runtime = Runtime::builder()
            .link(devbay_plugin_faulty::devbay_entry::PLUGIN)
            .plugin(library("cpu"))
            .options([option("fault", fault)])
            .options([option("devices", "gpu,npu")])
            .options([option("host_memory", "no")])
            .build()
            .expect("a runtime");
        let world = Self { runtime };
        for (name, launch_ns) in ["cpu:0", "faulty:0", "faulty:1"].into_iter().zip(launches) {
            world.device(name).set_rates(launches_of(launch_ns));
        }
        world
    }

    fn device(&self, name: &str) -> Arc<Device> {
        let found = self.runtime.devices().into_iter().find(|device| device.name() == name);
        found.unwrap_or_else(|| panic!("expected a device {name}"))
    }

    /// A session over all three, by cost, with nodes pinned to devices.
    fn session(&self, program: &str, pins: &[(&str, &str)]) -> Result<Session, Error> {
        self.session_fed(program, pins, None)
    }

    /// The same with what launches took before.
    fn session_fed(
        &self,
        program: &str,
        pins: &[(&str, &str)],
        feedback: Option<Feedback>,
    ) -> Result<Session, Error> {
        let model = Model::from_program(text::parse(program).unwrap_or_else(|e| panic!("{e}")));
        let options = SessionOptions {
            others: vec![self.device("faulty:1"), self.device("cpu:0")],
            pins: pins.iter().map(|(node, device)| ((*node).to_owned(), self.device(device))).collect(),
            by: PlaceBy::Cost,
            plans: PlanOptions {
                passes: Switches::without(["fuse-elementwise"]).unwrap(),
                feedback: feedback.map(Arc::new),
                ..PlanOptions::default()
            },
            ..SessionOptions::default()
        };
        Session::with_options(&model, &self.device("faulty:0"), options)
    }
}

/// The device of each of these nodes, after a run that gives what is expected.
fn placed(session: &Session, given: &[(&str, &Tensor)], nodes: &[&str], expected: &[f32]) -> Vec<String> {
    let outputs = session.run(given).expect("a run");
    assert_eq!(outputs[0].elements::<f32>().expect("floats"), expected);
    let plan = session.plan_for(given).expect("a plan");
    let of = |name: &&str| {
        let found = plan.sections().find_map(|section| {
            let is_it = |label: &&String| label.contains(*name) && !label.contains("copy");
            let at = section.labels.iter().position(|label| is_it(&&label.to_string()))?;
            Some(section.lanes[section.steps[at].lane as usize].name().to_owned())
        });
        found.unwrap_or_else(|| panic!("expected a launch of `{name}`"))
    };
    nodes.iter().map(of).collect()
}

const LINE: &str = r#"devbay-program 1

program "line"(%x: f32[4]) {
  %a: f32[4] = Relu@14(%x) as "first"
  %b: f32[4] = Relu@14(%a) as "middle"
  %c: f32[4] = Relu@14(%b) as "last"
  return %c
}
"#;
const NODES: [&str; 3] = ["first", "middle", "last"];

fn x() -> Tensor {
    Tensor::from_elements(&[4], &[-1f32, 2.0, 3.0, -4.0]).expect("a tensor")
}

const POSITIVE: [f32; 4] = [0.0, 2.0, 3.0, 0.0];

#[test]
fn what_lies_between_two_memories_goes_where_it_is_cheapest() {
    let ends = [("first", "faulty:0"), ("last", "faulty:1")];
    // Its value passes through the host in any case, so that no place costs more copies than another.
    for (launches, middle) in
        [([1e2, 1e3, 1e3], "cpu:0"), ([1e6, 1e3, 2e3], "faulty:0"), ([1e6, 2e3, 1e3], "faulty:1")]
    {
        let world = World::new(launches, "none");
        let session = world.session(LINE, &ends).expect("a session");
        assert_eq!(placed(&session, &[("x", &x())], &NODES, &POSITIVE), ["faulty:0", middle, "faulty:1"]);
    }
    // Nothing is pinned, and the way to another memory costs more than it saves.
    for (launches, device) in [([5e3, 1e3, 2e3], "cpu:0"), ([1e6, 2e3, 1e3], "faulty:1")] {
        let world = World::new(launches, "none");
        let session = world.session(LINE, &[]).expect("a session");
        assert_eq!(placed(&session, &[("x", &x())], &NODES, &POSITIVE), [device; 3]);
    }
}

/// Measured times of launches and copies override the rates.
#[test]
fn a_profile_that_says_otherwise_leads_to_another_placement() {
    let world = World::new([5e3, 1e3, 2e3], "none");
    let program = text::parse(LINE).unwrap_or_else(|e| panic!("{e}"));
    let node = &program.main.nodes[0];
    let types = NodeTypes::of(&program, node).expect("known types");
    let relu = signature("Relu@14", node, &types, Numerics::Strict);
    assert_eq!(relu, "Relu@14(f32[4]) f32[4]");
    let mut times = Feedback::default();
    let place = |times: &Feedback| {
        let session = world.session_fed(LINE, &[], Some(times.clone())).expect("a session");
        placed(&session, &[("x", &x())], &NODES, &POSITIVE)
    };
    assert_eq!(place(&times), ["cpu:0"; 3]);
    times.put(&world.device("cpu:0"), &relu, 1e6);
    assert_eq!(place(&times), ["faulty:0"; 3]);
    times.put(&world.device("faulty:0"), "copy to device, 16 bytes", 1e7);
    assert_eq!(place(&times), ["faulty:1"; 3]);
    // Of another length nothing is known.
    times.put(&world.device("faulty:1"), "copy to device, 20 bytes", 1e7);
    assert_eq!(place(&times), ["faulty:1"; 3]);
}

#[test]
fn a_kernel_that_refuses_when_it_is_prepared_leads_to_another_placement() {
    // Equal nodes are prepared once: nodes that the cheapest device refuses go to the next cheapest, without a visit to
    // it.
    let world = World::new([1e6, 2e3, 1e3], "unsupported@prepare#1");
    let session = world.session(LINE, &[]).expect("a session");
    assert_eq!(placed(&session, &[("x", &x())], &NODES, &POSITIVE), ["faulty:0"; 3]);
    // A node that is pinned to a device that refuses it has nowhere to go.
    let world = World::new([1e6, 2e3, 1e3], "unsupported@prepare#1");
    let pins = NODES.map(|node| (node, "faulty:1"));
    let error = world.session(LINE, &pins).map(drop).expect_err("a refusal");
    assert_eq!(error.kind(), ErrorKind::UnsupportedOp, "{error}");
    assert!(["faulty:1", "node first"].iter().all(|word| error.to_string().contains(word)), "{error}");
}

const BRANCHES: &str = r#"devbay-program 1

program "branches"(%x: f32[4], %sure: bool[]) {
  %a: f32[4] = Relu@14(%x) as "before"
  %y: f32[4] = If@25(%sure) as "either" then_branch() {
    %b: f32[4] = Relu@14(%a) as "then one"
    %c: f32[4] = Relu@14(%b) as "then two"
    return %c
  } else_branch() {
    %d: f32[4] = Relu@14(%a) as "else"
    return %d
  }
  %z: f32[4] = Relu@14(%y) as "after"
  return %z
}
"#;

#[test]
fn branches_are_placed_whole_and_reckoned_with() {
    for (launches, device) in [([1e2, 1e5, 1e5], "cpu:0"), ([1e7, 1e3, 1e5], "faulty:0")] {
        let world = World::new(launches, "none");
        let session = world.session(BRANCHES, &[]).expect("a session");
        for sure in [true, false] {
            let sure = Tensor::from_bytes(BOOL, &[], &[u8::from(sure)]).expect("a truth value");
            let given = [("x", &x()), ("sure", &sure)];
            let devices = placed(&session, &given, &["before", "then one", "else", "after"], &POSITIVE);
            assert_eq!(devices, [device; 4]);
        }
    }
}

#[test]
fn a_node_that_is_planned_while_it_runs_goes_where_it_is_not_refused() {
    // The number of elements left is known in the run, and the first device multiplies those of one shape alone.
    let program = r#"devbay-program 1

program "late"(%x: f32[4], %keep: bool[4], %factor: f32[1]) {
  %some: f32[?] = Compress@28(%x, %keep) as "some" {axis = 0}
  %y: f32[?] = Mul@14(%some, %factor) as "scaled"
  return %y
}
"#;
    let world = World::new([1e2, 1e3, 1e3], "none");
    let session = world.session(program, &[]).expect("a session");
    let keep = Tensor::from_bytes(BOOL, &[4], &[1, 0, 1, 1]).expect("truth values");
    let factor = Tensor::from_elements(&[1], &[2f32]).expect("a number");
    let outputs = session.run(&[("x", &x()), ("keep", &keep), ("factor", &factor)]).expect("a run");
    assert_eq!(outputs[0].elements::<f32>().expect("floats"), [-2.0, 6.0, -8.0]);
}
