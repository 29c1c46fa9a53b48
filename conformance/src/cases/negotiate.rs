//! Versions, struct sizes, options and extensions: everything that `create` is told.

use crate::case::Case;
use crate::desk::Desk;
use crate::rig::{AnySize, Detail, Rig, SLOTS, status_name};
use crate::verdict::{Outcome, Why, ensure, failed, not_run};
use devbay_plugin_api::abi::version::MinorRange;
use devbay_plugin_api::abi::*;
use std::collections::BTreeSet;

pub(crate) const CASES: &[Case] = &[
    Case {
        id: "negotiate.create",
        rules: &["B3", "B7"],
        requires: "`create` makes an instance of the highest common minor, and `destroy` ends it",
        needs: &["load.entry", "load.structs", "load.required", "load.name"],
        run: create,
    },
    Case {
        id: "negotiate.constant",
        rules: &["B1"],
        requires: "instances never write to the data that the entry returned",
        needs: &["negotiate.create", "load.entry.same"],
        run: constant,
    },
    Case {
        id: "negotiate.older",
        rules: &["B3", "B8"],
        requires: "`create` accepts every minor in the plugin's range, including those below the highest common one",
        needs: &["negotiate.create"],
        run: older,
    },
    Case {
        id: "negotiate.range",
        rules: &["B3"],
        requires: "a minor outside the plugin's range is refused with UNSUPPORTED, and no instance is written",
        needs: &["negotiate.create"],
        run: range,
    },
    Case {
        id: "negotiate.sizes",
        rules: &["B4"],
        requires: "`create` accepts descriptions and services of older and newer hosts, and reads only the \
                   fields they have",
        needs: &["negotiate.create"],
        run: sizes,
    },
    Case {
        id: "negotiate.options.unknown",
        rules: &["B25"],
        requires: "an unknown option is refused with INVALID, and no instance is written",
        needs: &["negotiate.create"],
        run: unknown_option,
    },
    Case {
        id: "negotiate.options.hosts",
        rules: &["B25"],
        requires: "an unknown host option, whose key begins with `devbay.`, is ignored",
        needs: &["negotiate.create"],
        run: hosts_option,
    },
    Case {
        id: "negotiate.options.known",
        rules: &["B25"],
        requires: "every listed option is accepted with its default value",
        needs: &["negotiate.create"],
        run: known_options,
    },
    Case {
        id: "negotiate.extensions",
        rules: &["B6"],
        requires: "a request for an unknown extension, or for a future revision, returns NULL",
        needs: &["negotiate.create"],
        run: extensions,
    },
];

/// An option that no plugin has.
pub(crate) const UNKNOWN_OPTION: &str = "devbay-conformance-unknown";

fn create(rig: &Rig<'_>) -> Outcome {
    drop(rig.open()?);
    Ok(())
}

fn constant(rig: &Rig<'_>) -> Outcome {
    let before = super::load::bytes_of(rig);
    let opened = rig.open()?;
    opened.device_infos()?;
    drop(opened);
    ensure!(before == super::load::bytes_of(rig), "an instance wrote to the data that the entry returned");
    Ok(())
}

fn options<'a>(rig: &'a Rig<'_>) -> Vec<(&'a str, &'a str)> {
    rig.options.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect()
}

fn older(rig: &Rig<'_>) -> Outcome {
    let plugin = rig.about()?.minors;
    let minors = plugin.min.max(MinorRange::CURRENT.min)..=plugin.max.min(MinorRange::CURRENT.max);
    if minors.start() == minors.end() {
        return not_run(Why::NotOffered, format!("host and plugin share only the minor {}", plugin));
    }
    for minor in minors {
        let mut detail = Detail::new();
        match rig.create(Desk::open(SLOTS), Some(minor), &options(rig), Some(&mut detail))? {
            Ok(opened) => {
                opened.device_infos()?;
            }
            Err(status) => return failed(format!("minor {minor} of {plugin}: {}", detail.describe(status))),
        }
    }
    Ok(())
}

fn range(rig: &Rig<'_>) -> Outcome {
    let plugin = rig.about()?.minors;
    let outside = [plugin.max.saturating_add(1), plugin.max.saturating_add(1000), u32::MAX];
    let below = plugin.min.checked_sub(1);
    for minor in outside.into_iter().chain(below) {
        let mut detail = Detail::new();
        match rig.create(Desk::open(SLOTS), Some(minor), &options(rig), Some(&mut detail))? {
            Err(DEVBAY_STATUS_UNSUPPORTED) => {}
            Err(status) => {
                return failed(format!(
                    "minor {minor} outside {plugin}: expected UNSUPPORTED, found {}",
                    status_name(status)
                ));
            }
            Ok(_) => return failed(format!("minor {minor} outside {plugin} was accepted")),
        }
    }
    Ok(())
}

fn sizes(rig: &Rig<'_>) -> Outcome {
    let minor = match rig.agreement() {
        Ok(agreement) => agreement.minor,
        Err(refusal) => return failed(refusal.reason.clone()),
    };
    let pairs = options(rig);
    let pairs: Vec<KeyValue> =
        pairs.iter().map(|(k, v)| KeyValue { key: Str::new(k), value: Str::new(v) }).collect();
    // Of the oldest host that there is, of this one, and of a newer one.
    let desc_sizes =
        BTreeSet::from([CreateDesc::REQUIRED_SIZE, size_of::<CreateDesc>(), size_of::<CreateDesc>() + 8]);
    let api_sizes = BTreeSet::from([HostApi::REQUIRED_SIZE, size_of::<HostApi>(), size_of::<HostApi>() + 8]);
    for desc_size in desc_sizes {
        for &api_size in &api_sizes {
            let desk = Desk::open(SLOTS);
            // Leaked, as the desk is: a call after `destroy` is another case's finding, not a crash here.
            let api = Box::leak(Box::new(AnySize::new(desk.api(), api_size)));
            let desc = CreateDesc {
                abi_minor: minor,
                host: api.as_ptr(),
                options: List::new(&pairs),
                ..CreateDesc::empty()
            };
            let mut desc = AnySize::new(&desc, desc_size);
            let mut detail = Detail::new();
            let created = rig.create_raw(desc.as_ptr(), desk, &mut detail.raw)?;
            match created {
                Ok(opened) => drop(opened),
                Err(status) => {
                    return failed(format!(
                        "a description of {desc_size} bytes with services of {api_size} bytes: {}",
                        detail.describe(status)
                    ));
                }
            }
        }
    }
    Ok(())
}

fn unknown_option(rig: &Rig<'_>) -> Outcome {
    let mut given = options(rig);
    given.push((UNKNOWN_OPTION, "1"));
    let mut detail = Detail::new();
    match rig.create(Desk::open(SLOTS), None, &given, Some(&mut detail))? {
        Err(DEVBAY_STATUS_INVALID) => Ok(()),
        Err(status) => failed(format!("expected INVALID, found {}", status_name(status))),
        Ok(_) => failed(format!("the unknown option {UNKNOWN_OPTION} was accepted")),
    }
}

fn hosts_option(rig: &Rig<'_>) -> Outcome {
    let mut given = options(rig);
    given.push(("devbay.unheard_of", "1"));
    let mut detail = Detail::new();
    match rig.create(Desk::open(SLOTS), None, &given, Some(&mut detail))? {
        Ok(opened) => opened.device_infos().map(drop),
        Err(status) => failed(format!("the option devbay.unheard_of: {}", detail.describe(status))),
    }
}

fn known_options(rig: &Rig<'_>) -> Outcome {
    let known = &rig.about()?.options;
    if known.is_empty() {
        return not_run(Why::NotOffered, "the plugin lists no options");
    }
    for option in known {
        ensure!(!option.key.is_empty(), "an option has no name");
        let mut given = options(rig);
        if given.iter().any(|(key, _)| *key == option.key) {
            continue;
        }
        given.push((&option.key, &option.default));
        let mut detail = Detail::new();
        if let Err(status) = rig.create(Desk::open(SLOTS), None, &given, Some(&mut detail))? {
            return failed(format!(
                "option {}={} (its default): {}",
                option.key,
                option.default,
                detail.describe(status)
            ));
        }
    }
    Ok(())
}

fn extensions(rig: &Rig<'_>) -> Outcome {
    let get = rig.optional(rig.table()?.get_extension, "get_extension")?;
    let opened = rig.open()?;
    // Neither reserved ids of the far end nor of the experiments' range are given out; a known extension has no
    // revision that high.
    let asked = [(0, 0), (0x7fff_fff0, 0), (0x7fff_fff0, 1), (u32::MAX, 0)];
    let future = (1..=6).map(|id| (id, u32::MAX));
    for (id, revision) in asked.into_iter().chain(future) {
        // SAFETY: the instance is the plugin's own, and alive until it is dropped.
        let table = unsafe { get(opened.handle.as_ptr(), id, revision) };
        ensure!(table.is_null(), "extension {id:#x} of revision {revision}: expected NULL, found a table");
    }
    Ok(())
}
