//! Many of everything: thousands of rounds that must leave nothing behind, and threads that meet (B9, B17, B21).
//!
//! A leak is measured in bytes for each round, as the slope of what the C library's allocator has given out and of
//! resident memory. It has to rise in every window of the rounds to count, so that a cache that fills is no leak. Each
//! window is as long as all rounds before it: a list that doubles its room when it is full does so in each of them.
//! Processes of these cases run without the allocator's caches of threads.

use crate::case::Case;
use crate::desk::Desk;
use crate::measure::{allocated, resident};
use crate::node::{How, Request, candidates};
use crate::ops::OPS;
use crate::rig::{Device, Rig, SLOTS, at_once, difference, pattern, status_name};
use crate::tensor::{Dice, from_bytes};
use crate::verdict::{Outcome, Why, ensure, failed, not_run};
use devbay_plugin_api::abi::DEVBAY_STATUS_UNSUPPORTED;
use std::sync::Barrier;
use std::time::{Duration, Instant};

pub(crate) const CASES: &[Case] = &[
    Case {
        id: "stress.leak.objects",
        rules: &["B9"],
        requires: "10,000 buffers, streams and copies, each released, leak no byte",
        needs: &["transfer.round_trip", "shutdown.memory"],
        run: objects,
    },
    Case {
        id: "stress.leak.kernels",
        rules: &["B9", "B21"],
        requires: "10,000 kernels, prepared, launched and released, leak no byte",
        needs: &["launch.bounds", "stress.leak.objects"],
        run: kernels,
    },
    Case {
        id: "stress.leak.refusals",
        rules: &["B18"],
        requires: "10,000 refused allocations, copies and kernels leak no byte",
        needs: &["transfer.kind", "kernel.prepare.index", "stress.leak.objects"],
        run: refusals,
    },
    Case {
        id: "stress.leak.instances",
        rules: &["B9", "B26"],
        requires: "up to 10,000 instances, each created, used and destroyed, leak no byte",
        needs: &["shutdown.instances", "shutdown.rounds", "stress.leak.objects"],
        run: instances,
    },
    Case {
        id: "stress.queue",
        rules: &["B12"],
        requires: "a stream accepts 10,000 copies and points, and completes them all in order",
        needs: &["transfer.order"],
        run: queue,
    },
    Case {
        id: "stress.threads",
        rules: &["B17"],
        requires: "threads that synchronise before every call allocate, copy, prepare and launch without a wrong byte",
        needs: &["memory.threads", "transfer.threads", "kernel.prepare.threads", "launch.threads"],
        run: threads,
    },
];

/// Rounds of a leak's case: those before the first mark, and four windows that double them.
const ROUNDS: u32 = 10_000;
const DOUBLINGS: u32 = 4;
/// A plugin that takes longer, over all its devices, is judged by the rounds that it did.
const TIME_MAX: Duration = Duration::from_secs(20);
/// Fewer say nothing.
const ROUNDS_MIN: u32 = 64;
/// Bytes a round that are a leak: less than the smallest block of an allocator.
const ALLOCATED_MAX: f64 = 8.0;
/// Pages come in fours of thousands: resident memory tells leaks of other allocators' alone.
const RESIDENT_MAX: f64 = 64.0;

/// Runs rounds on one of so many devices, and refuses what they leave behind.
fn leaks(rig: &Rig<'_>, what: &str, n_devices: usize, mut round: impl FnMut(u32) -> Outcome) -> Outcome {
    if !rig.own_process {
        return not_run(Why::OwnProcess, "measuring memory needs a separate process");
    }
    if rig.layered {
        return not_run(Why::OwnProcess, "a layer keeps tables of its own: run without layers");
    }
    if resident().is_none() {
        return not_run(Why::OwnProcess, "this system does not report a process's memory");
    }
    let begin = Instant::now();
    let time_max = TIME_MAX / n_devices.max(1) as u32;
    let mut n = 0;
    while n < ROUNDS >> DOUBLINGS && begin.elapsed() < time_max / (1 << DOUBLINGS) {
        round(n)?;
        n += 1;
    }
    if n < ROUNDS_MIN >> DOUBLINGS {
        let per_round = begin.elapsed() / n.max(1);
        return not_run(Why::Slow, format!("a round of {what} takes {per_round:?}, too long to find leaks"));
    }
    let (mut given, mut held) = (vec![(n, allocated())], vec![(n, resident())]);
    let mut verdict = Ok(());
    for window in 0..DOUBLINGS {
        // A machine that has become busy: a window without a leak is enough, one with a leak proves nothing.
        if window > 0 && verdict.is_ok() && begin.elapsed() > time_max {
            break;
        }
        for i in n..2 * n {
            round(i)?;
        }
        n *= 2;
        given.push((n, allocated()));
        held.push((n, resident()));
        let left = [("allocated", &given, ALLOCATED_MAX), ("resident", &held, RESIDENT_MAX)]
            .map(|(name, marks, max)| (name, left_in_each(marks), max));
        verdict = match left.iter().find(|(_, left, max)| left >= max) {
            None => Ok(()),
            Some((name, left, _)) => {
                failed(format!("{n} rounds of {what} leak at least {left:.1} {name} bytes each"))
            }
        };
    }
    verdict
}

/// Bytes that every round leaves behind, in the window of the rounds that left least: a leak leaks in each. Marks are
/// how many rounds were done, and the bytes then.
fn left_in_each(marks: &[(u32, Option<u64>)]) -> f64 {
    let marks: Vec<(f64, f64)> =
        marks.iter().filter_map(|&(n, bytes)| Some((f64::from(n), bytes? as f64))).collect();
    let slopes = marks.windows(2).map(|pair| (pair[1].1 - pair[0].1) / (pair[1].0 - pair[0].0));
    slopes.min_by(f64::total_cmp).unwrap_or(0.0)
}

/// Devices among which a case's time is divided.
fn n_devices(device: &Device<'_>) -> Outcome<usize> {
    Ok(device.opened.devices()?.len())
}

fn objects(rig: &Rig<'_>) -> Outcome {
    rig.each_device(|device| {
        let sent = pattern(device.pad(64), 1);
        leaks(rig, "a buffer, a stream and a copy", n_devices(device)?, |_| {
            let buffer = device.alloc(sent.len())?;
            let stream = device.stream()?;
            stream.upload(&sent, &buffer, 0)
        })
    })
}

fn kernels(rig: &Rig<'_>) -> Outcome {
    let about = rig.about()?;
    let first = OPS.iter().find_map(|op| Some((op, *candidates(about, op).first()?)));
    let Some((op, (kernel, dtype))) = first else {
        return not_run(Why::NotOffered, "the plugin has no kernel of the base set");
    };
    rig.each_device(|device| {
        device.plain_memory()?;
        let sample = op.typical(dtype);
        let stream = device.stream()?;
        leaks(rig, "a kernel and a launch", n_devices(device)?, |_| {
            match Request::new(device, kernel.idx, &sample).prepare(device)? {
                Ok(node) => node.run(kernel, &stream, &sample, How::default()).map(drop),
                Err((DEVBAY_STATUS_UNSUPPORTED, words)) => {
                    not_run(Why::Refused, format!("prepare of {}: {words}", kernel.op))
                }
                Err((_, words)) => failed(format!("prepare of {}: {words}", kernel.op)),
            }
        })
    })
}

fn refusals(rig: &Rig<'_>) -> Outcome {
    let about = rig.about()?;
    rig.each_device(|device| {
        let source = pattern(device.pad(64), 1);
        let buffer = device.alloc(source.len())?;
        let stream = device.stream()?;
        let first = OPS.iter().find_map(|op| Some((op, *candidates(about, op).first()?)));
        leaks(rig, "refusals", n_devices(device)?, |_| {
            let mut detail = crate::rig::Detail::new();
            let (status, _) = device.try_alloc(u32::MAX, 64, 0, &mut detail)?;
            ensure!(status != 0, "memory of a nonexistent space was allocated");
            let mut copy = crate::rig::empty_copy();
            copy.kind = 99;
            copy.dst = buffer.whole();
            copy.host_src = source.as_ptr().cast();
            copy.size_bytes = source.len() as u64;
            // SAFETY: an unknown kind is refused; buffer and source were made before the stream.
            let status = unsafe { stream.copy(&copy) }?;
            ensure!(status != 0, "a copy of an unknown kind was accepted");
            if let Some((op, (_, dtype))) = first {
                let sample = op.typical(dtype);
                let refused = Request::new(device, u32::MAX, &sample).prepare(device)?.is_err();
                ensure!(refused, "a kernel outside the table was prepared");
            }
            Ok(())
        })
    })
}

fn instances(rig: &Rig<'_>) -> Outcome {
    let pairs: Vec<(&str, &str)> = rig.options.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    // One for all: desks are leaked.
    let desk = Desk::open(SLOTS);
    leaks(rig, "an instance", 1, |i| {
        let opened = match rig.create(desk, None, &pairs, None)? {
            Ok(opened) => opened,
            Err(status) => return failed(format!("create returned {}", status_name(status))),
        };
        for device in opened.devices()? {
            let sent = pattern(device.pad(64), u64::from(i));
            let buffer = device.alloc(sent.len())?;
            device.stream()?.upload(&sent, &buffer, 0)?;
        }
        Ok(())
    })
}

fn queue(rig: &Rig<'_>) -> Outcome {
    rig.each_device(|device| {
        const N: usize = 10_000;
        let granule = device.pad(8);
        let sources: Vec<Vec<u8>> = (0..N).map(|i| pattern(granule, i as u64)).collect();
        let buffers = device.targets(N, granule)?;
        let stream = device.stream()?;
        let limited = device.inline();
        for (i, source) in sources.iter().enumerate() {
            // SAFETY: sources and buffers were made before the stream, whose drop waits for its work.
            unsafe { stream.enqueue_in(source, buffers[i % buffers.len()].whole()) }?;
            if !limited {
                stream.signal()?;
            }
        }
        // A device that is slow is given its time, as long as it goes on.
        for value in (1..=stream.signalled()).step_by(200) {
            stream.poll(value)?;
        }
        let found = stream.download(&buffers[(N - 1) % buffers.len()], 0, granule)?;
        match difference(&found, &sources[N - 1]) {
            Some(found) => failed(format!("after {N} copies, in the last: {found}")),
            None => Ok(()),
        }
    })
}

/// Threads that run at once.
const N_THREADS: u64 = 6;
/// Meetings.
const N_MEETINGS: u64 = 60;

fn threads(rig: &Rig<'_>) -> Outcome {
    rig.allows_threads()?;
    rig.each_device(|device| {
        let n_streams = match device.info.streams_max {
            0 => N_THREADS,
            max => N_THREADS.min(u64::from(max)),
        };
        let barrier = Barrier::new(n_streams as usize);
        at_once(0..n_streams as usize, |seed| visit(rig, device, &barrier, seed as u64)).map(drop)
    })
}

/// One thread's part: at each meeting all begin at once, after a pause by chance, so that any two calls come to
/// overlap in some of them.
fn visit(rig: &Rig<'_>, device: &Device<'_>, barrier: &Barrier, seed: u64) -> Outcome {
    let mut dice = Dice::new(seed + 1);
    let mut outcome = Ok(());
    for meeting in 0..N_MEETINGS {
        barrier.wait();
        // A thread that failed still comes to the meetings, since others wait for it.
        if outcome.is_err() {
            continue;
        }
        for _ in 0..dice.below(400) {
            std::hint::spin_loop();
        }
        outcome = call(rig, device, &mut dice, meeting * N_THREADS + seed);
    }
    outcome
}

fn call(rig: &Rig<'_>, device: &Device<'_>, dice: &mut Dice, seed: u64) -> Outcome {
    let sent = pattern(device.pad(64 + dice.below(4000) as usize), seed);
    let buffers = [device.alloc(sent.len())?, device.alloc(sent.len())?];
    let stream = device.stream()?;
    stream.upload(&sent, &buffers[0], 0)?;
    let mut last = &buffers[0];
    if !device.writes_once() {
        // SAFETY: the buffers were made before the stream, whose drop waits for its work.
        unsafe { stream.enqueue_within(buffers[0].whole(), buffers[1].whole(), sent.len()) }?;
        last = &buffers[1];
    }
    let found = stream.download(last, 0, sent.len())?;
    if let Some(found) = difference(&found, &sent) {
        return failed(format!("{} bytes copied during other threads' copies: {found}", sent.len()));
    }
    let about = rig.about()?;
    let ops: Vec<_> = OPS.iter().filter(|op| !candidates(about, op).is_empty()).collect();
    if ops.is_empty() || device.plain_memory().is_err() {
        return Ok(());
    }
    let op = ops[dice.below(ops.len() as u64) as usize];
    let (kernel, dtype) = candidates(about, op)[0];
    let sample = op.typical(dtype);
    let node = match Request::new(device, kernel.idx, &sample).prepare(device)? {
        Ok(node) => node,
        Err((DEVBAY_STATUS_UNSUPPORTED, _)) => return Ok(()),
        Err((_, words)) => {
            return failed(format!("prepare of {} during other threads' work: {words}", op.name));
        }
    };
    let ran = node.run(kernel, &stream, &sample, How::default())?;
    ensure!(ran.damage.is_empty(), "{} launched during other threads' launches: {:?}", op.name, ran.damage);
    // Numbers are of the profile `kernels`: a plugin that does not claim it may have launched kernels that compute
    // nothing.
    if !about.profiles.iter().any(|profile| profile == "kernels") {
        return Ok(());
    }
    let found = from_bytes(sample.expected.dtype, &ran.output);
    let pairs = found.iter().zip(&sample.expected.values).zip(&sample.bounds);
    // A NaN is within no bound.
    let n_right = pairs.filter(|((found, expected), bound)| (*found - *expected).abs() <= **bound).count();
    let n_wrong = sample.bounds.len() - n_right;
    ensure!(
        n_wrong == 0,
        "{} launched during other threads' launches: {n_wrong} elements are wrong",
        op.name
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::left_in_each;

    #[test]
    fn a_leak_rises_in_every_window() {
        let left = |marks: &[u64]| {
            let n = |i: usize| 100u32 << i;
            left_in_each(&marks.iter().enumerate().map(|(i, &mark)| (n(i), Some(mark))).collect::<Vec<_>>())
        };
        assert_eq!(left(&[0, 1600, 4800, 11200, 24000]), 16.0);
        // A cache that fills, and one that is emptied.
        assert_eq!(left(&[0, 1600, 3200, 3200, 3200]), 0.0);
        assert!(left(&[0, 1600, 3200, 1600, 6400]) < 0.0);
        assert_eq!(left_in_each(&[(100, None)]), 0.0);
        // A list of 8 bytes a round that has room for a power of two.
        let room = |n: u64| 8 * n.next_power_of_two();
        assert!(left(&[room(100), room(200), room(400), room(800), room(1600)]) >= 8.0);
    }
}
