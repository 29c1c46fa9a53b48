//! The end: instances come and go, beside each other, on any thread, and leave nothing behind (B2, B9, B26).

use crate::case::Case;
use crate::desk::Desk;
use crate::judge::OUTPUT_CASE;
use crate::measure::{count, resident};
use crate::node::{How, Request, candidates};
use crate::ops::OPS;
use crate::rig::{Opened, Rig, SLOTS, difference, pattern};
use crate::verdict::{Outcome, Why, ensure, failed, not_run};

pub(crate) const CASES: &[Case] = &[
    Case {
        id: "shutdown.instances",
        rules: &["B9"],
        requires: "instances are independent: neither the work nor the end of one affects another",
        needs: &["transfer.round_trip", "kernel.prepare"],
        run: instances,
    },
    Case {
        id: "shutdown.thread",
        rules: &["B17"],
        requires: "an instance created by one thread can be used and destroyed by others",
        needs: &["transfer.round_trip", "kernel.prepare"],
        run: other_thread,
    },
    Case {
        id: "shutdown.host_services",
        rules: &["B2", "B26"],
        requires: "nothing calls the host after `destroy`, and all log messages are UTF-8",
        needs: &["transfer.round_trip", "kernel.prepare"],
        run: host_services,
    },
    Case {
        id: "shutdown.rounds",
        rules: &["B26"],
        requires: "50 instances, created and destroyed, leave no thread and no open file behind",
        needs: &["transfer.round_trip", "kernel.prepare"],
        run: rounds,
    },
    Case {
        id: "shutdown.memory",
        rules: &["B9"],
        requires: "released buffers, streams and kernels leave no memory behind",
        needs: &["transfer.round_trip"],
        run: memory,
    },
];

/// Cases that look back on all others.
pub(crate) const LAST_CASES: &[Case] = &[Case {
    id: OUTPUT_CASE,
    rules: &["B28"],
    requires: "the plugin writes nothing to standard output during any test",
    needs: &[],
    run: |_| not_run(Why::OwnProcess, "collecting output needs separate processes"),
}];

/// Does a little of everything with an instance.
fn exercise(rig: &Rig<'_>, opened: &Opened<'_>, seed: u64) -> Outcome {
    for device in opened.devices()? {
        let sent = pattern(device.pad(5000), seed);
        let buffer = device.alloc(sent.len())?;
        let stream = device.stream()?;
        stream.upload(&sent, &buffer, 0)?;
        let found = stream.download(&buffer, 0, sent.len())?;
        if let Some(found) = difference(&found, &sent) {
            return failed(format!("5000 bytes to the device and back: {found}"));
        }
        if device.plain_memory().is_err() {
            continue;
        }
        let first = OPS.iter().find_map(|op| Some((op, *candidates(rig.about().ok()?, op).first()?)));
        if let Some((op, (kernel, dtype))) = first {
            let sample = op.large(dtype);
            if let Ok(node) = Request::new(&device, kernel.idx, &sample).prepare(&device)? {
                node.run(kernel, &stream, &sample, How::default())?;
            }
        }
    }
    Ok(())
}

fn instances(rig: &Rig<'_>) -> Outcome {
    let first = rig.open()?;
    let second = rig.open()?;
    ensure!(first.handle != second.handle, "two live instances have the same handle");
    exercise(rig, &first, 1)?;
    exercise(rig, &second, 2)?;
    drop(first);
    exercise(rig, &second, 3)?;
    let third = rig.open()?;
    drop(second);
    exercise(rig, &third, 4)
}

fn other_thread(rig: &Rig<'_>) -> Outcome {
    let opened = rig.open()?;
    let joined = |result: std::thread::Result<Outcome>| {
        result.unwrap_or_else(|_| failed("a thread of the suite panicked"))
    };
    std::thread::scope(|scope| joined(scope.spawn(|| exercise(rig, &opened, 5)).join()))?;
    exercise(rig, &opened, 6)?;
    // Moved to the thread that ends it.
    std::thread::scope(|scope| {
        let end = move || {
            drop(opened);
            Ok(())
        };
        joined(scope.spawn(end).join())
    })
}

fn host_services(rig: &Rig<'_>) -> Outcome {
    let pairs: Vec<(&str, &str)> = rig.options.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let desk = Desk::open(SLOTS);
    let n_threads = count("task");
    match rig.create(desk, None, &pairs, None)? {
        Ok(opened) => exercise(rig, &opened, 7)?,
        Err(status) => return failed(format!("create returned {}", crate::rig::status_name(status))),
    }
    std::thread::sleep(std::time::Duration::from_millis(50));
    // A thread that outlives the instance may come late on a busy machine; a driver's may stay for good.
    let begin = std::time::Instant::now();
    while desk.late_calls() == 0 && count("task") > n_threads && begin.elapsed().as_secs() < 2 {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    ensure!(desk.late_calls() == 0, "the host was called {} times after `destroy`", desk.late_calls());
    ensure!(desk.broken_texts() == 0, "{} log messages were not UTF-8", desk.broken_texts());
    Ok(())
}

fn rounds(rig: &Rig<'_>) -> Outcome {
    let counts = || Some((count("task")?, count("fd")?));
    if !rig.own_process {
        return not_run(Why::OwnProcess, "counting threads and files needs a separate process");
    }
    // The first round starts threads and memory that stay for good.
    exercise(rig, &rig.open()?, 8)?;
    let Some(before) = counts() else {
        return not_run(Why::OwnProcess, "this system does not report a process's threads and files");
    };
    for round in 0..50 {
        exercise(rig, &rig.open()?, 9 + round)?;
    }
    // A thread that was joined may be listed a moment longer.
    for _ in 0..50 {
        if counts().is_some_and(|after| after <= before) {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let after = counts().unwrap_or(before);
    ensure!(
        after.0 <= before.0,
        "after 50 instances there are {} threads, expected at most {}",
        after.0,
        before.0
    );
    ensure!(
        after.1 <= before.1,
        "after 50 instances there are {} open files, expected at most {}",
        after.1,
        before.1
    );
    Ok(())
}

fn memory(rig: &Rig<'_>) -> Outcome {
    if !rig.own_process {
        return not_run(Why::OwnProcess, "measuring memory needs a separate process");
    }
    rig.each_device(|device| {
        // Written, so that leaked memory is resident.
        let sent = pattern(device.pad(device.at_most(256 << 10)), 1);
        let once = || -> Outcome {
            let buffer = device.alloc(sent.len())?;
            let stream = device.stream()?;
            stream.upload(&sent, &buffer, 0)
        };
        for _ in 0..40 {
            once()?;
        }
        let Some(before) = resident() else {
            return not_run(Why::OwnProcess, "this system does not report a process's memory");
        };
        const ROUNDS: u64 = 200;
        for _ in 0..ROUNDS {
            once()?;
        }
        let grown = resident().unwrap_or(before).saturating_sub(before);
        // A quarter of the growth if every buffer leaked; allocators keep a little.
        ensure!(
            grown < ROUNDS * sent.len() as u64 / 4,
            "{ROUNDS} freed buffers of {} bytes left {grown} bytes behind",
            sent.len()
        );
        Ok(())
    })
}
