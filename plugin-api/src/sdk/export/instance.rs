//! Instances: created with the host's services and the user's options, and destroyed.

use super::call::{free, refuse_null, refused, report};
use crate::abi::*;
use crate::sdk::error::{Error, remember_panics};
use crate::sdk::listing::Lists;
use crate::sdk::{Host, Options, Plugin};

/// One use of the plugin.
pub(in crate::sdk) struct InstanceBox<P> {
    pub(in crate::sdk) plugin: P,
    pub(super) host: Host,
    pub(super) abi_minor: u32,
    pub(in crate::sdk) lists: Lists,
}

pub(super) unsafe extern "C" fn create<P: Plugin>(
    desc: *const CreateDesc,
    out: *mut *mut Instance,
    error: *mut ErrorDetail,
) -> Status {
    let body = || {
        remember_panics();
        // SAFETY: B4: `desc` is NULL or the host's struct, of the size that it says and alive for the call.
        let desc = unsafe { read_struct(desc) }.map_err(refused)?;
        refuse_null(out, "the place for the instance")?;
        // SAFETY: `desc.host` is NULL or the host's table of services, of the size that it says (B4) and alive until
        // `destroy`.
        let host = Host::new(unsafe { read_struct(desc.host) }.map_err(refused)?);
        let newest = DEVBAY_ABI_MINOR;
        if !(P::ABOUT.abi_minor_min..=newest).contains(&desc.abi_minor) {
            return Err(Error::unsupported(format!(
                "the host asks for ABI minor {}, this plugin speaks {} to {newest}",
                desc.abi_minor,
                P::ABOUT.abi_minor_min
            )));
        }
        // SAFETY: B5: the list holds pairs of texts, and lives for the call.
        let pairs: Vec<KeyValue> = unsafe { read_list(&desc.options, "KeyValue") }.map_err(refused)?;
        let mut given = Vec::with_capacity(pairs.len());
        let mut memory_limit = None;
        for pair in pairs {
            // SAFETY: B5: the text's bytes are the host's, and unchanged for the call.
            let key = unsafe { pair.key.get() }.map_err(refused)?;
            // SAFETY: B5: the other text of the pair, unchanged for the call.
            let value = unsafe { pair.value.get() }.map_err(refused)?;
            if key == MEMORY_LIMIT {
                let limit = value.parse().map_err(|_| {
                    Error::invalid(format!("option {key}: expected a number of bytes, found `{value}`"))
                })?;
                memory_limit = Some(limit);
            }
            // The host's, for plugins of every vendor.
            if key.starts_with(HOST_OPTIONS) {
                continue;
            }
            if !P::ABOUT.options.iter().any(|option| option.key == key) {
                let known: Vec<_> = P::ABOUT.options.iter().map(|option| option.key).collect();
                return Err(Error::invalid(format!("unknown option {key}, known are: {}", known.join(", "))));
            }
            given.push((key, value));
        }
        let options = Options { declared: P::ABOUT.options, given, abi_minor: desc.abi_minor, memory_limit };
        let plugin = P::create(host, &options)?;
        let instance =
            Box::new(InstanceBox { plugin, host, abi_minor: desc.abi_minor, lists: Lists::default() });
        // SAFETY: `out` is not NULL (checked above), so it is the host's place for one handle, as the header says of `create`.
        unsafe { out.write(Box::into_raw(instance).cast()) };
        Ok(())
    };
    // SAFETY: B18: `error` is NULL or the host's struct, of the size that it says (B4).
    unsafe { report(error, body) }
}

pub(super) unsafe extern "C" fn destroy<P: Plugin>(instance: *mut Instance) {
    // SAFETY: `create` made the handle, and the host gives it back once (B9).
    unsafe { free::<InstanceBox<P>, _>(instance) };
}
