//! Going on without a device that failed.
//!
//! A session that may fail over keeps the model and the devices that are left. When a run fails because of a device, the
//! model is planned for the others, once, and the run is made again there from its inputs, which are still the caller's;
//! so are all later ones. Programs have no variables, so that nothing of the first attempt is left behind but what it may
//! have written to the caller's results, all of which are written anew.
//!
//! What is not made again: a run that was cancelled or is past its deadline, one whose inputs or model are at fault, one
//! for which there is too little memory; and a model with a node that is pinned to the device.

use crate::model::Model;
use crate::session::{Session, SessionOptions};
use devbay_core::device::Device;
use devbay_core::error::{Error, ErrorKind};
use devbay_core::plan::{PlaceBy, Placement, PlanOptions};
use devbay_plugin_api::locks::lock;
use std::sync::{Arc, Mutex, OnceLock};

/// What a session needs to go on without a device.
pub(crate) struct Failover {
    pub model: Model,
    pub placement: Placement,
    pub plans: PlanOptions,
    /// Devices to go on with beside those of the session.
    pub spares: Vec<Arc<Device>>,
    /// Where runs go since a device failed.
    pub next: OnceLock<(Failure, Session)>,
    /// Held while the session that goes on is made.
    pub planning: Mutex<()>,
}

/// A device that failed, and who goes on.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The device that failed, `PLUGIN:INDEX`.
    pub device: String,
    /// What it said, with the op that it failed at where that is known.
    pub error: Error,
    /// The devices that go on, the first one first.
    pub went_on_with: Vec<String>,
}

impl Failover {
    /// Where runs go since a device failed; None as long as none has.
    pub fn next(&self) -> Option<&Session> {
        self.next.get().map(|(_, session)| session)
    }

    /// Where a run goes on that failed; None if the failure is the run's, or nothing is left.
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
                    // Nobody else sets it: the lock is held.
                    let _ = self.next.set((failure, session));
                }
                Ok(None) => {}
                Err(why) => tracing::warn!("the run does not go on with another device: {why}"),
            }
        }
        self.next()
    }

    /// The session without the devices that failed; None if nobody knows which did.
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
            // Inputs are padded before they come here.
            buckets: None,
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

/// Whether a failure is a device's or its plugin's, and not the caller's or the model's.
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
