//! Failover: sessions continue without a failed device.
//!
//! A session that may fail over keeps the model and the remaining devices. When a device fails a run, the model is planned
//! once for the other devices. The run is repeated there from its inputs, which the caller still has, and later runs go
//! there too. Programs have no variables, so the first attempt leaves nothing behind except writes to the caller's results,
//! all of which are written again.
//!
//! Some runs are not repeated: those that were cancelled, are past their deadline or lack memory, those whose inputs or
//! model are at fault, and those of a model with a node pinned to the failed device.

use crate::model::Model;
use crate::session::{Session, SessionOptions};
use devbay_core::device::Device;
use devbay_core::error::{Error, ErrorKind};
use devbay_core::plan::{PlaceBy, Placement, PlanOptions};
use devbay_plugin_api::locks::lock;
use std::sync::{Arc, Mutex, OnceLock};

/// State that a session needs to go on without a device.
pub(crate) struct Failover {
    pub model: Model,
    pub placement: Placement,
    pub plans: PlanOptions,
    /// Devices to fall back to, besides those of the session.
    pub spares: Vec<Arc<Device>>,
    /// The session that takes over runs after a device failed.
    pub next: OnceLock<(Failure, Session)>,
    /// Held while the replacing session is created.
    pub planning: Mutex<()>,
}

/// A failed device, and the devices that take over.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The device that failed, `PLUGIN:INDEX`.
    pub device: String,
    /// Its error, with the failing op if known.
    pub error: Error,
    /// The devices that take over, first choice first.
    pub went_on_with: Vec<String>,
}

impl Failover {
    /// Returns the session that takes over runs; None if no device has failed.
    pub fn next(&self) -> Option<&Session> {
        self.next.get().map(|(_, session)| session)
    }

    /// Returns the session that repeats a failed run; None if the run itself is at fault, or no device is left.
    pub fn after(&self, error: &Error) -> Option<&Session> {
        if !is_of_device(error.kind()) {
            return None;
        }
        let _planning = lock(&self.planning);
        if self.next.get().is_none() {
            match self.without_failed(error) {
                Ok(Some((failure, session))) => {
                    tracing::warn!(
                        "{} failed, and the run is made again on {}: {}",
                        failure.device,
                        failure.went_on_with.join(" and "),
                        failure.error
                    );
                    // Cannot be set already: the lock is held.
                    let _ = self.next.set((failure, session));
                }
                Ok(None) => {}
                Err(why) => tracing::warn!("the run does not go on with another device: {why}"),
            }
        }
        self.next()
    }

    /// Creates the session without the failed devices; None if the failing device is unknown.
    fn without_failed(&self, error: &Error) -> Result<Option<(Failure, Session)>, String> {
        let devices = self.placement.devices();
        let named = |device: &Device| device.name() == error.place().device;
        let is_gone = |device: &Device| device.is_lost() || device.plugin().is_poisoned();
        let has_failed = |device: &Arc<Device>| is_gone(device) || named(device);
        let Some(failed) =
            devices.iter().find(|device| named(device)).or_else(|| devices.iter().find(|d| is_gone(d)))
        else {
            return Ok(None);
        };
        if let Some((node, device)) = self.placement.pins.iter().find(|(_, device)| has_failed(device)) {
            return Err(format!("node `{node}` is pinned to {}, which failed", device.name()));
        }
        let mut left: Vec<Arc<Device>> = Vec::new();
        for &device in devices.iter().chain(&self.spares.iter().collect::<Vec<_>>()) {
            if !has_failed(device) && !left.iter().any(|known| Arc::ptr_eq(known, device)) {
                left.push(Arc::clone(device));
            }
        }
        let Some((first, others)) = left.split_first() else {
            return Err("none is left".to_owned());
        };
        let by = if others.is_empty() { PlaceBy::Order } else { self.placement.by };
        let options = SessionOptions {
            plans: self.plans.clone(),
            others: others.to_vec(),
            pins: self.placement.pins.clone(),
            by,
            runs_max: None,
            failover: Some(Vec::new()),
            // The caller pads the inputs.
            buckets: None,
            // The caller passes the seed of a run.
            seed: Some(0),
        };
        let session =
            Session::with_options(&self.model, first, options).map_err(|error| error.to_string())?;
        let failure = Failure {
            device: failed.name().to_owned(),
            error: error.clone(),
            went_on_with: left.iter().map(|device| device.name().to_owned()).collect(),
        };
        Ok(Some((failure, session)))
    }
}

/// Returns whether a device or its plugin is at fault, not the caller or the model.
fn is_of_device(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::DeviceLost
            | ErrorKind::Unavailable
            | ErrorKind::PluginFailed
            | ErrorKind::PluginPoisoned
            | ErrorKind::PluginBroken
    )
}
