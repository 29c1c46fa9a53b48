//! From WGSL to pipelines: once for each text, and with the driver's cache kept on disk.
//!
//! A shader's extents and strides are parameters, not text, so that nodes of many shapes share a pipeline: compiling one
//! takes longer than most of them run.

use devbay_plugin_api::locks::lock;
use devbay_plugin_api::sdk::*;
use devbay_shaders::target::Abilities;
use std::collections::HashMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

use crate::device::{Shared, param_binding};

/// A compiled shader.
pub struct Shader {
    /// The pipeline.
    pub pipeline: wgpu::ComputePipeline,
    /// Layout of its bindings: parameters at 0 if it has any, then storage buffers.
    pub layout: wgpu::BindGroupLayout,
}

/// The layouts of shaders with and without parameters, by their number of buffers.
type Layouts = HashMap<(bool, usize), (wgpu::BindGroupLayout, wgpu::PipelineLayout)>;
type Compiled = Arc<OnceLock<Result<Arc<Shader>>>>;

/// The shaders of a device.
pub struct Shaders {
    by_text: Mutex<HashMap<String, Compiled>>,
    layouts: Mutex<Layouts>,
    cache: Option<(wgpu::PipelineCache, PathBuf)>,
}

impl Shaders {
    /// None yet; what the driver compiled in earlier processes is read from the host's cache folder.
    pub fn open(device: &wgpu::Device, info: &wgpu::AdapterInfo, cached: bool, host: Host) -> Self {
        let key = wgpu::util::pipeline_cache_key(info).filter(|_| cached);
        let path = key.zip(host.config("cache_dir")).map(|(key, dir)| Path::new(dir).join(key));
        let cache = path.map(|path| {
            let data = std::fs::read(&path).ok();
            let desc = wgpu::PipelineCacheDescriptor {
                label: None,
                data: data.as_deref(),
                // Data of another driver is left aside.
                fallback: true,
            };
            // SAFETY: the file was written by `save` from what the driver gave; wgpu checks its header, which
            // names adapter and driver, before the driver sees it.
            (unsafe { device.create_pipeline_cache(&desc) }, path)
        });
        Self { by_text: Mutex::default(), layouts: Mutex::default(), cache }
    }

    /// Keeps what the driver compiled for later processes; what cannot be written is said and left.
    pub fn save(&self, host: Host) {
        let Some((cache, path)) = &self.cache else { return };
        if lock(&self.by_text).is_empty() {
            return;
        }
        let Some(data) = cache.get_data() else { return };
        let parent = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        // Other processes may read and write it too.
        let written = parent.and_then(|()| whole_file::write_file(path, |file| file.write_all(&data)));
        if let Err(error) = written {
            host.log(LogLevel::Warn, &format!("pipelines are not cached in {}: {error}", path.display()));
        }
    }

    /// A shader with an entry `main`, compiled if it was not before.
    ///
    /// # Errors
    /// Internal with the compiler's words; device lost.
    pub fn get(
        &self,
        shared: &Shared,
        name: &str,
        text: &str,
        has_params: bool,
        n_buffers: usize,
    ) -> Result<Arc<Shader>> {
        let compiled = Arc::clone(lock(&self.by_text).entry(text.to_owned()).or_default());
        // Threads that want the same shader wait for it; threads that want another one do not.
        compiled.get_or_init(|| self.compile(shared, name, text, has_params, n_buffers)).clone()
    }

    fn compile(
        &self,
        shared: &Shared,
        name: &str,
        text: &str,
        has_params: bool,
        n_buffers: usize,
    ) -> Result<Arc<Shader>> {
        let device = &shared.device;
        let compiled = shared.guarded(|| {
            let (layout, pipeline_layout) = self.layout(device, &shared.abilities, has_params, n_buffers);
            let source = wgpu::ShaderModuleDescriptor {
                label: Some(name),
                source: wgpu::ShaderSource::Wgsl(text.into()),
            };
            let checks = wgpu::ShaderRuntimeChecks { force_loop_bounding: false, ..Default::default() };
            // SAFETY: bounds are checked; loops of this plugin's shaders run over extents and end.
            let module = unsafe { device.create_shader_module_trusted(source, checks) };
            let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label: Some(name),
                layout: Some(&pipeline_layout),
                module: &module,
                entry_point: Some("main"),
                compilation_options: wgpu::PipelineCompilationOptions {
                    zero_initialize_workgroup_memory: false,
                    ..Default::default()
                },
                cache: self.cache.as_ref().map(|(cache, _)| cache),
            });
            Arc::new(Shader { pipeline, layout })
        });
        compiled.map_err(|e| Error::new(e.status(), format!("shader {name}: {}", e.text())))
    }

    fn layout(
        &self,
        device: &wgpu::Device,
        abilities: &Abilities,
        has_params: bool,
        n_buffers: usize,
    ) -> (wgpu::BindGroupLayout, wgpu::PipelineLayout) {
        let mut layouts = lock(&self.layouts);
        let layout = layouts.entry((has_params, n_buffers)).or_insert_with(|| {
            let entry = |binding: usize, ty| wgpu::BindGroupLayoutEntry {
                binding: binding as u32,
                visibility: wgpu::ShaderStages::COMPUTE,
                ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
                count: None,
            };
            let params = has_params.then(|| entry(0, param_binding(abilities)));
            // Everything may be written: operands of one launch are often parts of one buffer, which wgpu lets
            // be bound for reading or for writing in a dispatch, not for both.
            let storage = wgpu::BufferBindingType::Storage { read_only: false };
            let buffers = (0..n_buffers).map(|i| entry(i + 1, storage));
            let entries: Vec<_> = params.into_iter().chain(buffers).collect();
            let desc = wgpu::BindGroupLayoutDescriptor { label: None, entries: &entries };
            let group = device.create_bind_group_layout(&desc);
            let pipeline = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
                label: None,
                bind_group_layouts: &[Some(&group)],
                immediate_size: 0,
            });
            (group, pipeline)
        });
        layout.clone()
    }
}
