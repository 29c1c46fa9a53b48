//! Abilities that are used of an adapter, given its description.

use devbay_plugin_wgpu::device::{lacking, subgroup};

#[test]
fn subgroups_are_used_where_workgroups_have_whole_ones() {
    let of = |least, most, features| {
        let mut info = wgpu::AdapterInfo::new(wgpu::DeviceType::Cpu, wgpu::Backend::Vulkan);
        (info.subgroup_min_size, info.subgroup_max_size) = (least, most);
        subgroup(features, &info)
    };
    assert_eq!(of(8, 32, wgpu::Features::SUBGROUP), 8);
    assert_eq!(of(8, 128, wgpu::Features::SUBGROUP), 1);
    assert_eq!(of(8, 32, wgpu::Features::empty()), 1);
}

#[test]
fn an_adapter_that_kernels_cannot_use_is_refused_with_what_it_lacks() {
    assert_eq!(lacking(&wgpu::Limits::default()), None);
    let small = wgpu::Limits { max_compute_invocations_per_workgroup: 128, ..wgpu::Limits::default() };
    assert_eq!(lacking(&small).as_deref(), Some("has 128 threads in a workgroup, kernels need 256"));
    // WebGL's: no compute at all.
    assert!(lacking(&wgpu::Limits::downlevel_webgl2_defaults()).is_some());
}
