//! Executions, events and executables leave nothing behind. Alone in their file, and one after the other: they read what
//! the process takes.

#![cfg(target_os = "linux")]

mod support;

use devbay_plugin_api::locks::lock;
use devbay_plugin_pjrt::executable::{CompileOptions, Executable, Input};
use std::sync::Mutex;
use support::{ADD, devices, download, upload};

/// Held by the test that runs.
static ALONE: Mutex<()> = Mutex::new(());

/// Bytes of the process that are in memory.
fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").unwrap();
    text.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 4096
}

#[test]
fn a_thousand_executions_leave_nothing_behind() {
    // 64 KiB each: a buffer kept for every execution would be 64 MiB and more.
    const SUM: &[u8] =
        b"func.func public @main(%a: tensor<16384xf32>, %b: tensor<16384xf32>) -> tensor<16384xf32> {
        %sum = stablehlo.add %a, %b : tensor<16384xf32>
        return %sum : tensor<16384xf32>
    }";
    let _alone = lock(&ALONE);
    for device in devices() {
        let add = Executable::compile(device.client(), SUM, 2, &CompileOptions::minimal()).unwrap();
        let run = |n: usize| {
            for _ in 0..n {
                let values = vec![1.0; 16384];
                let inputs = [upload(&device, &values, &[16384]), upload(&device, &values, &[16384])];
                let execution = add.execute(&inputs.each_ref().map(Input::from)).unwrap();
                execution.done.wait().unwrap();
                assert_eq!(download(&execution.outputs[0])[16383], 2.0);
            }
        };
        run(100);
        let before = resident_bytes();
        run(1000);
        let grown = resident_bytes().saturating_sub(before);
        assert!(grown < 8 << 20, "{grown} bytes more on {:?}", device.client().library());
    }
}

#[test]
fn events_and_executables_leave_nothing_behind() {
    let _alone = lock(&ALONE);
    for device in devices() {
        let a = upload(&device, &[1.0; 4], &[4]);
        let run = |n: usize| {
            for _ in 0..n {
                a.ready().unwrap().wait().unwrap();
                a.ready().unwrap().on_ready(|result| result.unwrap()).unwrap();
            }
        };
        let compile = |n: usize| {
            for _ in 0..n {
                Executable::compile(device.client(), ADD, 2, &CompileOptions::minimal()).unwrap();
            }
        };
        run(1000);
        compile(5);
        let before = resident_bytes();
        run(200_000);
        let grown = resident_bytes().saturating_sub(before);
        assert!(grown < 4 << 20, "{grown} bytes more for events on {:?}", device.client().library());
        compile(50);
        let grown = resident_bytes().saturating_sub(before);
        assert!(grown < 4 << 20, "{grown} bytes more for executables on {:?}", device.client().library());
    }
}
