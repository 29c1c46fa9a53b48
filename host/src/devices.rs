//! The device registry and the choice of a device (B29).
//!
//! Devices are in total order: by kind as the policy prefers them, then by plugin in order of precedence, then by index. The
//! first that meets every requirement is chosen, and every other device gets its reason.

use crate::report::DeviceVerdict;
use devbay_core::device::{Device, kind_names};
use devbay_core::error::{Error, ErrorKind, Result};
use devbay_core::program::catalogue::{self, OpKind};
use devbay_core::program::{Op, Program};
use devbay_plugin_api::abi::{
    DEVBAY_DEVICE_KIND_CPU, DEVBAY_DEVICE_KIND_DSP, DEVBAY_DEVICE_KIND_FPGA, DEVBAY_DEVICE_KIND_GPU,
    DEVBAY_DEVICE_KIND_NPU, DEVBAY_DEVICE_KIND_TPU,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The wanted device.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum Policy {
    /// The first in the order: accelerators before processors.
    #[default]
    Auto,
    /// The first of a kind (`gpu`, `cpu`, ...), else as [`Policy::Auto`].
    PreferKind(String),
    /// A given device: `PLUGIN:INDEX`, `PLUGIN` for its first, or `PLUGIN/ID`.
    Explicit(String),
}

impl Policy {
    /// Parses the text of an option: `auto`, `prefer:KIND`, or a device.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a kind that the ABI does not name.
    pub fn parse(text: &str) -> Result<Self> {
        match text.strip_prefix("prefer:") {
            Some(kind) if kind_names().all(|name| name != kind) => {
                let names = kind_names().collect::<Vec<_>>().join(", ");
                let text = format!("there is no kind of device `{kind}`; kinds are {names}");
                Err(Error::new(ErrorKind::InvalidArgument, text))
            }
            Some(kind) => Ok(Self::PreferKind(kind.to_owned())),
            None if text == "auto" => Ok(Self::Auto),
            None => Ok(Self::Explicit(text.to_owned())),
        }
    }

    /// Returns the plugin that it names, if any.
    pub fn plugin(&self) -> Option<&str> {
        match self {
            Self::Explicit(device) => device.split([':', '/']).next(),
            _ => None,
        }
    }
}

/// Requirements that a device must meet.
#[derive(Clone, Default)]
pub struct Requirements<'a> {
    /// Kernels for every op of this program.
    pub program: Option<&'a Program>,
    /// Memory in bytes, checked if the device reports its memory.
    pub memory: u64,
}

/// A chosen device, with reasons.
pub struct Choice {
    /// The device.
    pub device: Arc<Device>,
    /// A verdict for each device, in the policy's order.
    pub verdicts: Vec<DeviceVerdict>,
}

/// Chooses a device.
///
/// # Errors
/// [`ErrorKind::NotFound`] if the device does not exist or there are no devices; [`ErrorKind::UnsupportedOp`] if none meets
/// the requirements, with the reason of each.
pub fn choose(devices: &[Arc<Device>], policy: &Policy, requirements: &Requirements<'_>) -> Result<Choice> {
    if devices.is_empty() {
        return Err(Error::new(
            ErrorKind::NotFound,
            "there is no device: no plugin was loaded, or none has a device; `devbay devices` has the reasons",
        ));
    }
    if let Policy::Explicit(name) = policy {
        return explicit(devices, name);
    }
    let mut order: Vec<&Arc<Device>> = devices.iter().collect();
    // The sort is stable: within a kind, plugins and devices keep their order.
    order.sort_by_key(|device| rank(policy, device.about().kind, device.about().kind_name()));
    let mut verdicts = Vec::with_capacity(order.len());
    let mut chosen: Option<&Arc<Device>> = None;
    for device in order {
        let refusal = unmet(device, requirements);
        let reason = match (&refusal, chosen) {
            (Some(refusal), _) => refusal.clone(),
            (None, Some(first)) => format!("would do; {} comes first in the order", first.name()),
            (None, None) => format!(
                "first in the order of kinds that meets the requirements: {}",
                device.about().kind_name()
            ),
        };
        let is_chosen = refusal.is_none() && chosen.is_none();
        if is_chosen {
            chosen = Some(device);
        }
        verdicts.push(DeviceVerdict { device: device.name().to_owned(), chosen: is_chosen, reason });
    }
    match chosen {
        Some(device) => Ok(Choice { device: Arc::clone(device), verdicts }),
        None => {
            let mut reasons: Vec<String> =
                verdicts.iter().map(|verdict| format!("{}: {}", verdict.device, verdict.reason)).collect();
            let missing = |program| devices.iter().flat_map(move |device| missing_ops(device, program));
            let missing: Vec<MissingOp> =
                requirements.program.into_iter().flat_map(missing).map(|(_, op)| op).collect();
            let first_other = missing.iter().find(|missing| !missing.op.domain.is_empty());
            reasons.extend(first_other.or(missing.first()).map(|missing| missing.op.remedy().to_owned()));
            Err(Error::new(
                ErrorKind::UnsupportedOp,
                format!("no device meets the requirements; {}", reasons.join("; ")),
            ))
        }
    }
}

fn explicit(devices: &[Arc<Device>], name: &str) -> Result<Choice> {
    let matches = |device: &&Arc<Device>| {
        device.name() == name
            || device.stable_id() == name
            || (device.plugin().name() == name && device.index() == 0)
    };
    let Some(device) = devices.iter().find(matches) else {
        let known: Vec<&str> = devices.iter().map(|device| device.name()).collect();
        return Err(Error::new(
            ErrorKind::NotFound,
            format!("there is no device {name}; there are: {}", known.join(", ")),
        ));
    };
    let verdicts = devices
        .iter()
        .map(|other| DeviceVerdict {
            device: other.name().to_owned(),
            chosen: Arc::ptr_eq(other, device),
            reason: if Arc::ptr_eq(other, device) {
                format!("named: {name}")
            } else {
                format!("{name} was named")
            },
        })
        .collect();
    Ok(Choice { device: Arc::clone(device), verdicts })
}

fn rank(policy: &Policy, kind: u32, kind_name: &str) -> u32 {
    let preferred = matches!(policy, Policy::PreferKind(wanted) if wanted == kind_name);
    match kind {
        _ if preferred => 0,
        DEVBAY_DEVICE_KIND_GPU => 1,
        DEVBAY_DEVICE_KIND_TPU => 2,
        DEVBAY_DEVICE_KIND_NPU => 3,
        DEVBAY_DEVICE_KIND_DSP => 4,
        DEVBAY_DEVICE_KIND_FPGA => 5,
        DEVBAY_DEVICE_KIND_CPU => 7,
        _ => 6,
    }
}

/// Returns the reason why a device does not qualify; None if it does.
fn unmet(device: &Device, requirements: &Requirements<'_>) -> Option<String> {
    if device.is_lost() {
        return Some("the device is lost".to_owned());
    }
    if device.plugin().is_poisoned() {
        return Some("its plugin panicked before".to_owned());
    }
    let total = device.space().bytes_total;
    if total > 0 && total < requirements.memory {
        return Some(format!("it has {total} bytes of memory, {} are wanted", requirements.memory));
    }
    let missing = missing_ops(device, requirements.program?);
    (!missing.is_empty()).then(|| {
        let list: Vec<String> =
            missing.iter().map(|(op, missing)| format!("{op} (node {})", missing.node)).collect();
        format!("it has no kernel for {}", list.join(", "))
    })
}

/// An op without a kernel.
pub struct MissingOp {
    /// The op.
    pub op: Op,
    /// The first node that needs it.
    pub node: String,
}

/// Lists ops of a program for which a device has no kernel of any version or type, by their texts.
pub fn missing_ops(device: &Device, program: &Program) -> BTreeMap<String, MissingOp> {
    let kernels = device.kernels();
    let mut missing = BTreeMap::new();
    program.main.visit(&mut |node| {
        let host =
            catalogue::find(&node.op.domain, &node.op.name).is_some_and(|def| def.kind != OpKind::Kernel);
        if !host && !kernels.has(&node.op.domain, &node.op.name) {
            let entry = missing.entry(node.op.to_string());
            entry.or_insert_with(|| MissingOp { op: node.op.clone(), node: node.label() });
        }
    });
    missing
}
