//! Allocations: sizes, alignments, refusals, and that no two share a byte (B9 to B11).

use crate::case::Case;
use crate::desk::Desk;
use crate::rig::{
    AnySize, Buffer, Detail, Device, Rig, SLOTS, at_once, bytes_type, difference, is_plain, pattern,
    status_name,
};
use crate::verdict::{Outcome, Why, ensure, failed, not_run};
use devbay_plugin_api::abi::*;

pub(crate) const CASES: &[Case] = &[
    Case {
        id: "memory.alloc",
        rules: &["B9", "B11"],
        requires: "every space allocates buffers of common sizes, with at least the requested size and alignment",
        needs: &["devices.list", "devices.spaces"],
        run: alloc,
    },
    Case {
        id: "memory.align",
        rules: &["B11"],
        requires: "a stricter alignment is honoured, or refused with INVALID",
        needs: &["memory.alloc"],
        run: align,
    },
    Case {
        id: "memory.zero",
        rules: &["B9"],
        requires: "an allocation of 0 bytes returns a buffer",
        needs: &["memory.alloc"],
        run: zero,
    },
    Case {
        id: "memory.too_large",
        rules: &["B18"],
        requires: "impossible allocations fail with OUT_OF_MEMORY or INVALID, and small ones still succeed",
        needs: &["memory.alloc"],
        run: too_large,
    },
    Case {
        id: "memory.refusals",
        rules: &["B11", "B18"],
        requires: "a nonexistent space and an invalid alignment are refused with INVALID",
        needs: &["memory.alloc"],
        run: refusals,
    },
    Case {
        id: "memory.limit",
        rules: &["B11", "B25"],
        requires: "with `devbay.memory_limit`, buffers may total that many bytes; requests beyond it fail with \
                   OUT_OF_MEMORY, and freeing makes room",
        needs: &["memory.alloc", "negotiate.options.hosts"],
        run: limit,
    },
    Case {
        id: "memory.disjoint",
        rules: &["B9"],
        requires: "live buffers never overlap, even after others were freed",
        needs: &["memory.alloc"],
        run: disjoint,
    },
    Case {
        id: "memory.host_visible",
        rules: &["B11"],
        requires: "the host may read and write at the base of a HOST_VISIBLE buffer",
        needs: &["memory.alloc"],
        run: host_visible,
    },
    Case {
        id: "memory.sizes",
        rules: &["B4"],
        requires: "`buffer_alloc` accepts descriptions of older and newer hosts, and never writes beyond a \
                   struct's end",
        needs: &["memory.alloc"],
        run: sizes,
    },
    Case {
        id: "memory.threads",
        rules: &["B17"],
        requires: "many threads can allocate and free memory at once",
        needs: &["memory.disjoint"],
        run: threads,
    },
];

fn limited(space: &MemorySpace, size: usize) -> usize {
    if space.alloc_max == 0 { size } else { size.min(space.alloc_max as usize) }
}

fn alloc(rig: &Rig<'_>) -> Outcome {
    rig.each_device(|device| {
        for (i, space) in device.spaces.iter().enumerate() {
            for size in [1, 3, 64, 4096, 100_000, 1 << 20] {
                let buffer = device.alloc_in(i as u32, limited(space, size))?;
                ensure!(
                    buffer.usable >= buffer.size as u64,
                    "space {i} allocated {} bytes, but {} were requested",
                    buffer.usable,
                    buffer.size
                );
                ensure!(
                    buffer.base.is_multiple_of(space.alloc_align),
                    "space {i} returned the address {:#x}, but its alloc_align is {}",
                    buffer.base,
                    space.alloc_align
                );
                let addressed = DEVBAY_SPACE_HOST_VISIBLE | DEVBAY_SPACE_ADDRESSABLE;
                ensure!(
                    space.flags & addressed == 0 || buffer.base != 0,
                    "space {i} is HOST_VISIBLE or ADDRESSABLE, but its buffer has no address"
                );
            }
        }
        Ok(())
    })
}

fn align(rig: &Rig<'_>) -> Outcome {
    rig.each_device(|device| {
        for (i, space) in device.spaces.iter().enumerate() {
            for align in [space.alloc_align, 128, 256, 4096, 1 << 16] {
                let align = align.max(space.alloc_align);
                let size = device.pad(limited(space, 100)) as u64;
                // Several, because one is often aligned by luck.
                let mut live = Vec::new();
                for _ in 0..8 {
                    let mut detail = Detail::new();
                    match device.try_alloc(i as u32, size, align, &mut detail)? {
                        (DEVBAY_STATUS_INVALID, _) if align > space.alloc_align => break,
                        (DEVBAY_STATUS_OK, out) => {
                            let buffer = device.own(out, size as usize)?;
                            ensure!(
                                buffer.base.is_multiple_of(align),
                                "space {i} returned the address {:#x} for an alignment of {align}",
                                buffer.base
                            );
                            live.push(buffer);
                        }
                        (status, _) => {
                            return failed(format!("an alignment of {align}: {}", detail.describe(status)));
                        }
                    }
                }
            }
        }
        Ok(())
    })
}

fn zero(rig: &Rig<'_>) -> Outcome {
    rig.each_device(|device| {
        for (i, space) in device.spaces.iter().enumerate() {
            let mut detail = Detail::new();
            let (status, out) = device.try_alloc(i as u32, 0, space.alloc_align, &mut detail)?;
            ensure!(status == DEVBAY_STATUS_OK, "space {i}: {}", detail.describe(status));
            drop(device.own(out, 0)?);
        }
        Ok(())
    })
}

/// Refuses a result that a failed call left behind.
fn nothing_written(out: &Allocation, what: &str) -> Outcome {
    ensure!(
        out.buffer.is_null() && out.base == 0 && out.size_bytes == 0,
        "{what} was refused, but a result was written"
    );
    Ok(())
}

fn too_large(rig: &Rig<'_>) -> Outcome {
    rig.each_device(|device| {
        if !device.spaces.iter().any(is_plain) {
            return not_run(
                Why::Memory,
                "every space is TYPED, and may allocate memory only on the first write",
            );
        }
        for (i, space) in device.spaces.iter().enumerate().filter(|(_, space)| is_plain(space)) {
            // Sizes that overflow when something is added, and some that no machine has.
            let mut sizes = vec![u64::MAX, u64::MAX - 63, i64::MAX as u64, i64::MAX as u64 + 1, 1 << 60];
            if space.alloc_max > 0 {
                sizes.push(space.alloc_max + space.copy_granule.max(1));
            }
            for size in sizes {
                let mut detail = Detail::new();
                let (status, out) = device.try_alloc(i as u32, size, space.alloc_align, &mut detail)?;
                match status {
                    DEVBAY_STATUS_OUT_OF_MEMORY | DEVBAY_STATUS_INVALID => {}
                    DEVBAY_STATUS_OK => {
                        return failed(format!("space {i} reported an allocation of {size} bytes"));
                    }
                    status => {
                        return failed(format!(
                            "{size} bytes: expected OUT_OF_MEMORY, found {}",
                            detail.describe(status)
                        ));
                    }
                }
                nothing_written(&out, &format!("an allocation of {size} bytes"))?;
                drop(device.alloc_in(i as u32, limited(space, 64))?);
            }
        }
        Ok(())
    })
}

fn refusals(rig: &Rig<'_>) -> Outcome {
    rig.each_device(|device| {
        let n_spaces = device.spaces.len() as u32;
        let align = device.space().alloc_align;
        for (space_idx, align) in [(n_spaces, align), (u32::MAX, align), (0, 3), (0, 96)] {
            let mut detail = Detail::new();
            let what = format!("space {space_idx} of {n_spaces} with an alignment of {align}");
            let (status, out) = device.try_alloc(space_idx, 64, align, &mut detail)?;
            if status == DEVBAY_STATUS_OK {
                drop(device.own(out, 64)?);
                return failed(format!("{what} was accepted"));
            }
            ensure!(
                status == DEVBAY_STATUS_INVALID,
                "{what}: expected INVALID, found {}",
                status_name(status)
            );
            nothing_written(&out, &what)?;
        }
        Ok(())
    })
}

fn limit(rig: &Rig<'_>) -> Outcome {
    const LIMIT: usize = 1 << 20;
    let text = LIMIT.to_string();
    let mut options: Vec<(&str, &str)> =
        rig.options.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect();
    options.push((MEMORY_LIMIT, &text));
    let mut detail = Detail::new();
    let opened = match rig.create(Desk::open(SLOTS), None, &options, Some(&mut detail))? {
        Ok(opened) => opened,
        Err(status) => return failed(format!("{MEMORY_LIMIT}={LIMIT}: {}", detail.describe(status))),
    };
    let mut keeps = false;
    for device in opened.devices()? {
        device.plain_memory()?;
        for _ in 0..2 {
            let half = device.alloc(LIMIT / 2)?;
            let quarter = device.alloc(LIMIT / 4)?;
            let mut detail = Detail::new();
            let align = device.space().alloc_align;
            let (status, out) = device.try_alloc(0, LIMIT as u64 / 2, align, &mut detail)?;
            match status {
                DEVBAY_STATUS_OK => drop(device.own(out, LIMIT / 2)?),
                DEVBAY_STATUS_OUT_OF_MEMORY => keeps = true,
                status => return failed(format!("beyond the limit: {}", detail.describe(status))),
            }
            drop((half, quarter));
        }
    }
    if keeps { Ok(()) } else { not_run(Why::NotOffered, "the plugin does not limit memory") }
}

/// Refuses two buffers with a byte in common.
fn check_disjoint(buffers: &[Buffer<'_>]) -> Outcome {
    let mut ranges: Vec<(u64, u64)> =
        buffers.iter().filter(|buffer| buffer.base != 0).map(|b| (b.base, b.base + b.usable)).collect();
    ranges.sort_unstable();
    for pair in ranges.windows(2) {
        ensure!(
            pair[0].1 <= pair[1].0,
            "two live buffers overlap: {:#x}..{:#x} and {:#x}..{:#x}",
            pair[0].0,
            pair[0].1,
            pair[1].0,
            pair[1].1
        );
    }
    let mut handles: Vec<_> = buffers.iter().map(|buffer| buffer.handle).collect();
    handles.sort_unstable();
    handles.dedup();
    ensure!(handles.len() == buffers.len(), "two live buffers have the same handle");
    Ok(())
}

fn disjoint(rig: &Rig<'_>) -> Outcome {
    rig.each_device(|device| {
        let mut live = Vec::new();
        for i in 0..64usize {
            live.push(device.alloc(device.at_most(1 + i * 97))?);
            if i % 3 == 2 {
                live.swap_remove(i % live.len());
            }
        }
        check_disjoint(&live)
    })
}

fn host_visible(rig: &Rig<'_>) -> Outcome {
    let mut n_visible = 0;
    rig.each_device(|device| {
        for (i, space) in device.spaces.iter().enumerate() {
            if !is_plain(space) || space.flags & DEVBAY_SPACE_HOST_VISIBLE == 0 {
                continue;
            }
            n_visible += 1;
            let buffer = device.alloc_in(i as u32, limited(space, 10_000))?;
            let expected = pattern(buffer.size, 1);
            // SAFETY: the space says that the host may write there; nothing uses the buffer.
            let bytes = unsafe { std::slice::from_raw_parts_mut(buffer.base as *mut u8, buffer.size) };
            bytes.copy_from_slice(&expected);
            if let Some(found) = difference(bytes, &expected) {
                return failed(format!("space {i}, read back by the host: {found}"));
            }
        }
        Ok(())
    })?;
    if n_visible == 0 {
        return not_run(Why::NotOffered, "no space is HOST_VISIBLE");
    }
    Ok(())
}

fn sizes(rig: &Rig<'_>) -> Outcome {
    rig.each_device(|device| {
        let size = device.pad(64) as u64;
        let shape = [size as i64];
        let tensor = bytes_type(&shape);
        let desc = AllocDesc { size_bytes: size, align: device.space().alloc_align, ..AllocDesc::empty() };
        let newer = size_of::<AllocDesc>() + 8;
        // The oldest hosts know of no types.
        let (desc, desc_sizes) = if is_plain(device.space()) {
            (desc, [AllocDesc::REQUIRED_SIZE, AllocDesc::REQUIRED_SIZE + 8, newer])
        } else {
            (AllocDesc { tensor: &tensor, ..desc }, [size_of::<AllocDesc>(), newer, newer + 8])
        };
        for desc_size in desc_sizes {
            for out_size in [Allocation::REQUIRED_SIZE, size_of::<Allocation>() + 8] {
                let mut desc = AnySize::new(&desc, desc_size);
                let mut out = AnySize::new(&Allocation::empty(), out_size);
                let mut detail = Detail::new();
                // SAFETY: both structs have as many bytes as they say (`AnySize`).
                let status = unsafe { device.alloc_raw(desc.as_ptr(), out.as_ptr(), &mut detail.raw) }?;
                let what = format!("a description of {desc_size} bytes and a result of {out_size}");
                ensure!(status == DEVBAY_STATUS_OK, "{what}: {}", detail.describe(status));
                let buffer = device.own(out.value(), size as usize)?;
                ensure!(out.is_intact(), "{what}: the plugin wrote beyond the result's end");
                ensure!(buffer.usable >= size, "{what}: only {} bytes were allocated", buffer.usable);
                ensure!(
                    out.value().struct_size as usize == out_size,
                    "{what}: the plugin changed the result's struct_size to {}",
                    out.value().struct_size
                );
            }
        }
        Ok(())
    })
}

fn threads(rig: &Rig<'_>) -> Outcome {
    rig.allows_threads()?;
    rig.each_device(|device| {
        let lists = at_once(0..4, |seed| churn(device, seed))?;
        check_disjoint(&lists.into_iter().flatten().collect::<Vec<_>>())
    })
}

/// Allocates and frees, and gives what is left.
fn churn<'a>(device: &'a Device<'_>, seed: usize) -> Outcome<Vec<Buffer<'a>>> {
    let mut live = Vec::new();
    for i in 0..200usize {
        live.push(device.alloc(device.at_most(1 + (i * 131 + seed * 17) % 5000))?);
        if live.len() > 16 {
            live.swap_remove((i * 7) % live.len());
        }
    }
    Ok(live)
}
