//! The choice of a device, and the reasons against the others (B29).

use crate::support::{Host, MODEL_INPUT, model, relu, tensor};
use devbay_host::{ErrorKind, Policy, Requirements, Session};

fn host() -> Host {
    Host::faulty(&[("devices", "cpu,other,gpu,npu,gpu")])
}

fn chosen(host: &Host, policy: &str) -> String {
    let choice = host.runtime.choose(&Policy::parse(policy).unwrap(), &Requirements::default()).unwrap();
    choice.device.name().to_owned()
}

#[test]
fn b29_the_order_is_total() {
    let host = host();
    let choice = host.runtime.choose(&Policy::Auto, &Requirements::default()).unwrap();
    let order: Vec<_> = choice.verdicts.iter().map(|verdict| verdict.device.as_str()).collect();
    // By kind, then by index; a processor last.
    assert_eq!(order, ["faulty:2", "faulty:4", "faulty:3", "faulty:1", "faulty:0"]);
    for _ in 0..3 {
        assert_eq!(chosen(&host, "auto"), "faulty:2");
    }
}

#[test]
fn b29_a_kind_is_preferred_and_not_demanded() {
    let host = host();
    assert_eq!(chosen(&host, "prefer:npu"), "faulty:3");
    assert_eq!(chosen(&host, "prefer:cpu"), "faulty:0");
    assert_eq!(chosen(&host, "prefer:tpu"), "faulty:2", "there is none, so the order as it is");
    let error = Policy::parse("prefer:banana").expect_err("no kind");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.text().contains("kinds are cpu, gpu, npu, tpu, dsp, fpga, other"), "{error}");
}

#[test]
fn b29_devices_are_named_by_index_plugin_or_stable_id() {
    let host = host();
    assert_eq!(chosen(&host, "faulty:3"), "faulty:3");
    assert_eq!(chosen(&host, "faulty"), "faulty:0");
    assert_eq!(chosen(&host, "faulty/unit-4"), "faulty:4");
    assert_eq!(host.runtime.devices()[4].stable_id(), "faulty/unit-4");
    for unknown in ["faulty:5", "faulty/unit-9", "nobody", "nobody:0", ""] {
        let error = host
            .runtime
            .choose(&Policy::parse(unknown).unwrap(), &Requirements::default())
            .err()
            .expect(unknown);
        assert_eq!(error.kind(), ErrorKind::NotFound, "{unknown}");
        // The message lists the devices, or the plugins if it is the plugin that is unknown.
        assert!(error.text().contains("there is no") && error.text().contains("faulty"), "{error}");
    }
}

#[test]
fn b29_every_device_gets_its_reason() {
    let host = host();
    let reasons = |policy: &str| -> Vec<(String, bool, String)> {
        let choice = host.runtime.choose(&Policy::parse(policy).unwrap(), &Requirements::default()).unwrap();
        let verdict = |v: &devbay_host::DeviceVerdict| (v.device.clone(), v.chosen, v.reason.clone());
        choice.verdicts.iter().map(verdict).collect()
    };
    let auto = reasons("auto");
    assert_eq!(auto.len(), 5);
    assert_eq!(auto.iter().filter(|(_, chosen, _)| *chosen).count(), 1);
    assert!(auto[0].1 && auto[0].2.contains("gpu"), "{auto:?}");
    assert!(auto[1..].iter().all(|(.., reason)| reason.contains("faulty:2 comes first")), "{auto:?}");
    let named = reasons("faulty:1");
    assert!(named.iter().all(|(device, chosen, _)| *chosen == (device == "faulty:1")), "{named:?}");
}

#[test]
fn b29_requirements_turn_devices_down() {
    let host = host();
    let requirements = |source: &str| devbay_host::internals::core::program::text::parse(source).unwrap();
    let program = requirements(
        "devbay-program 1\n\nprogram \"\"(%x: f32[4]) {\n  %y: f32[4] = Sinh@9(%x)\n  return %y\n}\n",
    );
    let requirements = Requirements { program: Some(&program), ..Requirements::default() };
    let error = host.runtime.choose(&Policy::Auto, &requirements).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::UnsupportedOp);
    for device in 0..5 {
        assert!(error.text().contains(&format!("faulty:{device}: it has no kernel for Sinh")), "{error}");
    }
}

/// A lost device is passed over; the next in the order is taken.
#[test]
fn b29_lost_devices_are_passed_over() {
    let host = Host::faulty(&[("devices", "gpu,cpu"), ("fault", "lost@launch")]);
    assert_eq!(chosen(&host, "auto"), "faulty:0");
    assert_eq!(relu(&host.device()).unwrap_err().kind(), ErrorKind::DeviceLost);
    assert_eq!(chosen(&host, "auto"), "faulty:1");
}

/// A session runs where it was made.
#[test]
fn b29_sessions_run_on_the_chosen_device() {
    let host = host();
    for device in host.runtime.devices() {
        let session = Session::new(&model(), &device).unwrap();
        assert_eq!(session.device().name(), device.name());
        session.run(&[("x", &tensor(&MODEL_INPUT))]).unwrap();
    }
}
