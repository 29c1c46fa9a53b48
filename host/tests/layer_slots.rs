//! Slots of layers are counted and come back. A test program of its own, with one test: others would find none left.

#[path = "queued/mod.rs"]
mod queued;
#[path = "layers/rig.rs"]
mod rig;
#[path = "layers/toy.rs"]
mod toy;

use devbay_host::internals::layers::slots::N_SLOTS;
use devbay_host::internals::layers::validation::{self, Settings};
use devbay_host::{Outcome, PluginReport, RefusalKind, Runtime};
use devbay_plugin_api::abi::*;
use queued::{FORMS, World};
use rig::{HOST, call, info, wrap};
use toy::nothing;

#[test]
fn slots_are_counted_and_come_back() {
    slots_are_bounded_and_come_back();
    runtimes_give_their_slots_back();
}

fn slots_are_bounded_and_come_back() {
    let mut held = Vec::new();
    let refusal = loop {
        // SAFETY: the data was leaked, and is of this header's types.
        match unsafe { validation::wrap_info(info(|_, _| ()), &Settings::default()) } {
            Ok(wrapped) => held.push(wrapped),
            Err(refusal) => break refusal,
        }
        assert!(held.len() <= N_SLOTS);
    };
    assert_eq!(refusal.kind, RefusalKind::NoLayerSlot);
    let entry = held[0].plugin();
    assert_eq!(entry.query(), std::ptr::from_ref(held[0].info()));
    let shown = held[0].info();
    held.clear();
    // SAFETY: the table of a layer that is gone; it stays readable, and its functions find nothing.
    let table = unsafe { *shown.table };
    let desc = CreateDesc { abi_minor: 2, host: &HOST, ..CreateDesc::empty() };
    assert_eq!(call!(table, create(&desc, &mut nothing(), nothing())), DEVBAY_STATUS_INVALID);
    drop(wrap(|_, _| (), &Settings::default()));
}

/// Slots are given back with their runtimes: many more can follow each other than there are slots.
fn runtimes_give_their_slots_back() {
    let refused = |runtime: &Runtime| {
        let kind = |plugin: &PluginReport| match &plugin.outcome {
            Outcome::Refused(refusal) => Some(refusal.kind),
            _ => None,
        };
        runtime.report().plugins.iter().find_map(kind)
    };
    let make = || {
        let world = World::new();
        let (name, _, _, entry) = FORMS[0];
        let runtime = Runtime::builder()
            .threads(1)
            .link(entry)
            .option(name, "world", world.option())
            .layers(["validation"; 8])
            .build();
        (runtime.unwrap(), world)
    };
    for _ in 0..10 {
        assert_eq!(refused(&make().0), None);
    }
    let held: Vec<_> = (0..5).map(|_| make()).collect();
    assert_eq!(refused(&held[4].0), Some(RefusalKind::NoLayerSlot));
}
