//! Devices that come and go.

use super::error::{Error, Result};
use crate::locks::lock;
use std::sync::Mutex;

/// The devices of an instance that may lose, remove or add some while it lives: the devices that
/// [`Plugin::devices`] lists, and earlier ones that the host may still hold.
///
/// [`Plugin::devices`]: super::Plugin::devices
pub struct DeviceSet<D> {
    state: Mutex<KnownDevices<D>>,
}

struct KnownDevices<D> {
    /// All devices so far. Boxes are added and never removed.
    all: Vec<Box<D>>,
    /// Positions in `all` of the devices that are present, in order.
    listed: Vec<usize>,
}

impl<D> Default for DeviceSet<D> {
    fn default() -> Self {
        Self { state: Mutex::new(KnownDevices { all: Vec::new(), listed: Vec::new() }) }
    }
}

impl<D: Sync> DeviceSet<D> {
    /// Lists the devices again, for [`Plugin::devices`](super::Plugin::devices). `find` receives the previous
    /// list and returns the new one, which gives each device that stays by its position, and each new device
    /// by value.
    ///
    /// Only one call at a time runs `find`; other threads wait.
    ///
    /// # Errors
    /// The error of `find`; the list is then unchanged.
    pub fn update(&self, find: impl FnOnce(&[&D]) -> Result<Vec<Listed<D>>>) -> Result<Vec<&D>> {
        let mut state = lock(&self.state);
        let before = state.listed.clone();
        let known: Vec<&D> = before.iter().map(|&at| &*state.all[at]).collect();
        let mut listed = Vec::new();
        let mut added = Vec::new();
        for found in find(&known)? {
            listed.push(match found {
                Listed::Stays(place) => *before.get(place).ok_or_else(|| {
                    Error::internal(format!("device {place} stays, and there were {}", before.len()))
                })?,
                Listed::New(device) => {
                    added.push(Box::new(device));
                    state.all.len() + added.len() - 1
                }
            });
        }
        state.all.append(&mut added);
        state.listed = listed;
        let devices = state.listed.iter().map(|&at| {
            let device: *const D = &raw const *state.all[at];
            // SAFETY: a box of `all`, which stays where it is and is dropped with `self`; nothing borrows it mutably.
            unsafe { &*device }
        });
        Ok(devices.collect())
    }
}

/// One device of a new list.
pub enum Listed<D> {
    /// The device at this position of the previous list.
    Stays(usize),
    /// A device that was added or has returned.
    New(D),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listed(
        set: &DeviceSet<u32>,
        find: impl FnOnce(&[&u32]) -> Result<Vec<Listed<u32>>>,
    ) -> Vec<*const u32> {
        set.update(find).expect("a list").into_iter().map(std::ptr::from_ref).collect()
    }

    #[test]
    fn who_stays_does_not_move_and_who_comes_back_is_another() {
        let set = DeviceSet::default();
        let first = listed(&set, |known| {
            assert!(known.is_empty());
            Ok((0..100).map(Listed::New).collect())
        });
        // Every other one is lost, and one of them comes back.
        let second = listed(&set, |known| {
            assert_eq!(known.len(), 100);
            let stay = (0..100).step_by(2).map(Listed::Stays);
            Ok(stay.chain([Listed::New(1)]).collect())
        });
        assert_eq!(second[..50], first.iter().copied().step_by(2).collect::<Vec<_>>()[..]);
        assert!(!first.contains(&second[50]));
        // SAFETY: devices live as long as their set.
        assert_eq!(unsafe { (*first[1], *second[50]) }, (1, 1));
        assert!(set.update(|_| Err(Error::unavailable("no driver"))).is_err());
        assert!(set.update(|_| Ok(vec![Listed::Stays(51)])).is_err());
        assert_eq!(listed(&set, |known| Ok((0..known.len()).map(Listed::Stays).collect())), second);
    }
}
