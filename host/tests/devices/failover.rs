//! Sessions that go on without a device that failed, on a plugin that fails when it is told to.

use devbay_host::internals::core::program::text;
use devbay_host::{Error, ErrorKind, InputView, Model, RunOptions, Runtime, Session, SessionOptions, Tensor};

const PROGRAM: &str = r#"devbay-program 1

program "two"(%x: f32[4]) {
  %a: f32[4] = Relu@14(%x) as "first"
  %b: f32[4] = Mul@14(%a, %a) as "second"
  return %b
}
"#;

/// A runtime with two devices of the faulty plugin, on which the calls of a function are counted together.
fn runtime(fault: &str, streams: &str) -> Runtime {
    let option = |key: &str, value: &str| ("faulty".to_owned(), key.to_owned(), value.to_owned());
    Runtime::builder()
        .link(devbay_plugin_faulty::devbay_entry::PLUGIN)
        .options([option("fault", fault)])
        .options([option("streams", streams)])
        .options([option("devices", "other,other")])
        .build()
        .expect("a runtime")
}

/// A session on the first device, which goes on with the second.
fn session(runtime: &Runtime, pinned: Option<&str>) -> Session {
    let devices = runtime.devices();
    let options = SessionOptions {
        pins: pinned.map(|node| (node.to_owned(), devices[0].clone())).into_iter().collect(),
        failover: Some(vec![devices[1].clone()]),
        ..SessionOptions::default()
    };
    let model = Model::from_program(text::parse(PROGRAM).expect("a program"));
    Session::with_options(&model, &devices[0], options).expect("a session")
}

fn input() -> Tensor {
    Tensor::from_elements(&[4], &[-1f32, 2.0, 3.0, -4.0]).expect("a tensor")
}

const EXPECTED: [f32; 4] = [0.0, 4.0, 9.0, 0.0];

fn run(session: &Session) -> Result<Vec<f32>, Error> {
    let results = session.run(&[("x", &input())])?;
    Ok(results[0].elements::<f32>().expect("floats").to_vec())
}

#[test]
fn a_run_is_made_again_on_the_device_that_is_left() {
    for streams in ["inline", "async"] {
        let runtime = runtime("internal@launch#4", streams);
        let session = session(&runtime, None);
        // The fourth launch is the second one of the second run.
        for _ in 0..4 {
            assert_eq!(run(&session).expect("a run"), EXPECTED, "{streams}");
        }
        let failures = session.failures();
        let [failure] = &failures[..] else { panic!("expected one failure, found {failures:?}") };
        assert_eq!((&*failure.device, &failure.went_on_with[..]), ("faulty:0", &["faulty:1".to_owned()][..]));
        assert_eq!(failure.error.kind(), ErrorKind::PluginFailed, "{}", failure.error);
        let place = failure.error.place();
        assert_eq!((&*place.plugin, &*place.device), ("faulty", "faulty:0"), "{}", failure.error);
        assert!(place.node.contains("second"), "{}", failure.error);
        assert_eq!((session.device().name(), session.current().device().name()), ("faulty:0", "faulty:1"));
    }
}

#[test]
fn into_memory_and_in_the_background_too() {
    let runtime = runtime("internal@launch#1", "inline");
    let session = self::session(&runtime, None);
    let (x, mut y) = (input(), [0u8; 16]);
    session.run_into(&[InputView::of(&x)], &mut [&mut y[..]], &RunOptions::default()).expect("a run");
    assert_eq!(y, bytemuck::cast::<_, [u8; 16]>(EXPECTED));
    assert_eq!(session.failures().len(), 1);

    let runtime = self::runtime("internal@launch#1", "async");
    let session = self::session(&runtime, None);
    let outputs = session.run_async(&[("x", &input())], &RunOptions::default()).expect("a run").wait();
    let outputs = outputs.expect("results");
    assert_eq!(outputs[0].elements::<f32>(), Some(&EXPECTED[..]));
    assert_eq!(session.failures().len(), 1);
}

#[test]
fn without_leave_the_failure_is_the_runs() {
    let runtime = runtime("internal@launch#1", "inline");
    let model = Model::from_program(text::parse(PROGRAM).expect("a program"));
    let options = SessionOptions { others: vec![runtime.devices()[1].clone()], ..SessionOptions::default() };
    let session = Session::with_options(&model, &runtime.devices()[0], options).expect("a session");
    let error = run(&session).expect_err("no run");
    assert_eq!((error.kind(), &*error.place().device), (ErrorKind::PluginFailed, "faulty:0"), "{error}");
    assert!(session.failures().is_empty());
}

#[test]
fn what_takes_all_devices_with_it_is_the_runs_failure() {
    // A lost device of this plugin takes the others with it; a panic outside of kernels poisons the plugin
    // with all of its devices.
    for (fault, kind) in
        [("lost@launch#1", ErrorKind::DeviceLost), ("panic@create_stream#1", ErrorKind::PluginPoisoned)]
    {
        let runtime = runtime(fault, "inline");
        let session = session(&runtime, None);
        let error = run(&session).expect_err("no run");
        assert_eq!((error.kind(), &*error.place().device), (kind, "faulty:0"), "{error}");
        assert!(run(&session).is_err());
    }
}

#[test]
fn a_node_that_is_pinned_to_the_device_keeps_it_from_going_on() {
    let runtime = runtime("internal@launch#1", "inline");
    let session = session(&runtime, Some("second"));
    let error = run(&session).expect_err("no run");
    assert_eq!((error.kind(), &*error.place().device), (ErrorKind::PluginFailed, "faulty:0"), "{error}");
    assert!(session.failures().is_empty());
}

#[test]
fn what_is_the_callers_fault_is_no_devices() {
    let runtime = runtime("none", "inline");
    let session = session(&runtime, None);
    let wrong = Tensor::from_elements(&[3], &[0f32; 3]).expect("a tensor");
    let error = session.run(&[("x", &wrong)]).expect_err("no run");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(session.failures().is_empty());
}
