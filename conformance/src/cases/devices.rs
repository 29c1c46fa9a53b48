//! The list of devices, and what each says of itself (B11, B14, B29).

use crate::case::Case;
use crate::rig::{Detail, Opened, Rig, at_once, status_name};
use crate::verdict::{Outcome, Why, ensure, failed, not_run};
use devbay_plugin_api::abi::*;
use std::collections::BTreeSet;

pub(crate) const CASES: &[Case] = &[
    Case {
        id: "devices.list",
        rules: &["B5", "B11"],
        requires: "`devices` succeeds, and each device has a handle and at least one memory space",
        needs: &["negotiate.create"],
        run: list,
    },
    Case {
        id: "devices.same",
        rules: &["B29"],
        requires: "a second list, from this or another instance, has the same ids, names and properties",
        needs: &["devices.list"],
        run: same,
    },
    Case {
        id: "devices.snapshot",
        rules: &["B17", "B29"],
        requires: "several threads that list the devices at once get the same list, and the first list does not change",
        needs: &["devices.same"],
        run: snapshot,
    },
    Case {
        id: "devices.ids",
        rules: &["B29"],
        requires: "every device has a unique id, and a name",
        needs: &["devices.list"],
        run: ids,
    },
    Case {
        id: "devices.spaces",
        rules: &["B11"],
        requires: "alignments are powers of two, and limits do not contradict each other",
        needs: &["devices.list"],
        run: spaces,
    },
    Case {
        id: "devices.timeline",
        rules: &["B7", "B14"],
        requires: "a plugin with a device that is not inline has `stream_signal` and `stream_reached`",
        needs: &["devices.list"],
        run: timeline,
    },
    Case {
        id: "devices.memory_info",
        rules: &["B11"],
        requires: "`memory_info` succeeds for every space, and refuses a nonexistent one with INVALID",
        needs: &["devices.list"],
        run: memory_info,
    },
];

fn list(rig: &Rig<'_>) -> Outcome {
    rig.each_device(|_| Ok(()))
}

/// Describes the constant properties of each device of a list, in words.
pub(super) fn descriptions(opened: &Opened<'_>, list: &List) -> Outcome<Vec<String>> {
    let text = |text: &Str| {
        // SAFETY: the plugin keeps the text as long as the instance.
        match unsafe { text.get() } {
            Ok(text) => Ok(text.to_owned()),
            Err(error) => failed(format!("a device has an invalid text: {error}")),
        }
    };
    let describe = |info: &DeviceInfo| {
        Ok(format!(
            "id {}, name {}, kind {}, flags {:#x}, {} spaces, physical id {:02x?}",
            text(&info.id)?,
            text(&info.name)?,
            info.kind,
            info.flags,
            info.spaces.len,
            info.physical_id
        ))
    };
    opened.read_devices(list)?.iter().map(describe).collect()
}

/// Returns the handles of a list.
pub(super) fn handles(opened: &Opened<'_>, list: &List) -> Outcome<Vec<usize>> {
    Ok(opened.read_devices(list)?.iter().map(|info| info.handle.addr()).collect())
}

fn same(rig: &Rig<'_>) -> Outcome {
    let opened = rig.open()?;
    let list = opened.device_list()?;
    let (first, before) = (descriptions(&opened, &list)?, handles(&opened, &list)?);
    let list = opened.device_list()?;
    let again = descriptions(&opened, &list)?;
    ensure!(first == again, "the list changed: first {}, then {}", first.join("; "), again.join("; "));
    ensure!(before == handles(&opened, &list)?, "a second list has different handles");
    let second = rig.open()?;
    let other = descriptions(&second, &second.device_list()?)?;
    ensure!(
        first == other,
        "another instance lists other devices: first {}, then {}",
        first.join("; "),
        other.join("; ")
    );
    Ok(())
}

fn snapshot(rig: &Rig<'_>) -> Outcome {
    const N: usize = 20;
    let opened = rig.open()?;
    let list = opened.device_list()?;
    let (words, devices) = (descriptions(&opened, &list)?, handles(&opened, &list)?);
    let ask = |_| {
        for _ in 0..N {
            let now = opened.device_list()?;
            let (found, now) = (descriptions(&opened, &now)?, handles(&opened, &now)?);
            ensure!(
                found == words,
                "the list changed: first {}, then {}",
                words.join("; "),
                found.join("; ")
            );
            ensure!(now == devices, "a second list has different handles");
        }
        Ok(())
    };
    at_once(0..if rig.allows_threads().is_ok() { 4 } else { 1 }, ask)?;
    let found = descriptions(&opened, &list)?;
    ensure!(
        found == words,
        "the first list changed: it was {}, and is now {}",
        words.join("; "),
        found.join("; ")
    );
    ensure!(handles(&opened, &list)? == devices, "the first list's handles changed");
    Ok(())
}

fn ids(rig: &Rig<'_>) -> Outcome {
    let opened = rig.open()?;
    let mut seen = BTreeSet::new();
    for device in opened.devices()? {
        // SAFETY: the plugin keeps the texts as long as the instance.
        let texts = unsafe { (device.info.id.get(), device.info.name.get()) };
        let (Ok(id), Ok(name)) = texts else {
            return failed(format!("device {} has an invalid text", device.index));
        };
        ensure!(!id.is_empty(), "device {} has no id", device.index);
        ensure!(!name.is_empty(), "device {} has no name", device.index);
        ensure!(seen.insert(id.to_owned()), "two devices have the id {id}");
    }
    Ok(())
}

fn spaces(rig: &Rig<'_>) -> Outcome {
    rig.each_device(|device| {
        for (i, space) in device.spaces.iter().enumerate() {
            let place = format!("space {i} of device {}", device.index);
            ensure!(
                space.alloc_align.is_power_of_two(),
                "{place} has an alloc_align of {}, expected a power of two",
                space.alloc_align
            );
            for (what, value) in [("bind_align", space.bind_align), ("copy_align", space.copy_align)] {
                // An older plugin has 0 there.
                ensure!(
                    value == 0 || value.is_power_of_two(),
                    "{place} has a {what} of {value}, expected a power of two"
                );
            }
            let contradiction = space.bytes_total > 0 && space.alloc_max > space.bytes_total;
            ensure!(
                !contradiction,
                "{place} allows allocations of {} bytes, but has only {}",
                space.alloc_max,
                space.bytes_total
            );
            let visible = space.flags & DEVBAY_SPACE_HOST_VISIBLE != 0;
            ensure!(
                !(visible && space.flags & DEVBAY_SPACE_WRITE_ONCE != 0),
                "{place} is both HOST_VISIBLE and WRITE_ONCE"
            );
        }
        Ok(())
    })
}

fn timeline(rig: &Rig<'_>) -> Outcome {
    let table = *rig.table()?;
    rig.each_timeline(|device| {
        ensure!(
            table.stream_signal.is_some() && table.stream_reached.is_some(),
            "device {} is not inline, but the plugin lacks stream_signal or stream_reached",
            device.index
        );
        Ok(())
    })
}

fn memory_info(rig: &Rig<'_>) -> Outcome {
    let memory_info = rig.optional(rig.table()?.memory_info, "memory_info")?;
    let mut n_answers = 0;
    rig.each_device(|device| {
        for (i, space) in device.spaces.iter().enumerate() {
            let mut info = MemoryInfo::empty();
            let mut detail = Detail::new();
            let handle = device.info.handle;
            // SAFETY: the plugin's function with its own device; the structs are ours.
            match unsafe { memory_info(handle, i as u32, &mut info, &mut detail.raw) } {
                DEVBAY_STATUS_UNSUPPORTED => continue,
                DEVBAY_STATUS_OK => n_answers += 1,
                status => return failed(format!("space {i}: {}", detail.describe(status))),
            }
            ensure!(
                space.bytes_total == 0 || info.bytes_available <= space.bytes_total,
                "space {i} reports {} available bytes of a total of {}",
                info.bytes_available,
                space.bytes_total
            );
        }
        let mut info = MemoryInfo::empty();
        let beyond = device.spaces.len() as u32;
        // SAFETY: the device is the plugin's own; its struct is ours, and the case asks for a space that is not there.
        let status = unsafe { memory_info(device.info.handle, beyond, &mut info, std::ptr::null_mut()) };
        ensure!(
            status == DEVBAY_STATUS_INVALID,
            "space {beyond} of {beyond}: expected INVALID, found {}",
            status_name(status)
        );
        Ok(())
    })?;
    if n_answers == 0 {
        return not_run(Why::NotOffered, "`memory_info` returns UNSUPPORTED for every space");
    }
    Ok(())
}
