//! wgpu without devbay: the dispatches of a chain, recorded into one encoder and pass and submitted once, as in a program
//! written for this chain alone.

use crate::gpu_launch::{Buffers, N_ELEMENTS, Operands};
use anyhow::{Context, Result, anyhow};
use std::num::NonZeroU64;

/// Bytes of a chain's input and of its result.
const BYTES: u64 = (N_ELEMENTS * size_of::<f32>()) as u64;

/// Bindings set before each dispatch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rebinding {
    /// Pipeline and bind group every time, as between the different kernels of a model.
    EachTime,
    /// The pipeline once, and a bind group when it changes: the minimum for this chain.
    Once,
}

/// A chain ready to be recorded.
pub struct Bare {
    device: wgpu::Device,
    queue: wgpu::Queue,
    pipeline: wgpu::ComputePipeline,
    groups: Vec<wgpu::BindGroup>,
    /// The bind group of each dispatch.
    dispatches: Vec<usize>,
    state: Rebinding,
    input: wgpu::Buffer,
    output: wgpu::Buffer,
    readback: wgpu::Buffer,
}

/// Recorded dispatches that are not yet submitted.
pub struct Recorded {
    // Must be dropped before the encoder is finished.
    pass: wgpu::ComputePass<'static>,
    encoder: wgpu::CommandEncoder,
}

impl Bare {
    /// Opens the device's adapter, and creates everything that a recording needs.
    ///
    /// # Errors
    /// If there is no such adapter, and errors of wgpu.
    pub fn open(
        product: &str,
        operands: &[Operands],
        buffers: Buffers,
        one: &[f32],
        state: Rebinding,
    ) -> Result<Self> {
        let backends = wgpu::Backends::VULKAN | wgpu::Backends::METAL | wgpu::Backends::DX12;
        let instance = wgpu::Instance::new(wgpu::InstanceDescriptor {
            backends,
            // As in the plugin: without the driver's validation layers.
            flags: wgpu::InstanceFlags::empty(),
            ..wgpu::InstanceDescriptor::new_without_display_handle()
        });
        let adapters = pollster::block_on(instance.enumerate_adapters(backends));
        let adapter = adapters.into_iter().find(|adapter| adapter.get_info().name == product);
        let adapter = adapter.with_context(|| format!("wgpu has no adapter {product}"))?;
        let (device, queue) = pollster::block_on(adapter.request_device(&wgpu::DeviceDescriptor {
            label: Some("bare"),
            required_limits: adapter.limits(),
            ..Default::default()
        }))?;
        let is_software = adapter.get_info().device_type == wgpu::DeviceType::Cpu;
        let pipeline = pipeline(&device, is_software);

        use wgpu::BufferUsages as Usage;
        let operand = Usage::STORAGE | Usage::COPY_SRC | Usage::COPY_DST;
        let make = |size: u64, usage: Usage| {
            let size = size.max(BYTES);
            device.create_buffer(&wgpu::BufferDescriptor {
                label: None,
                size,
                usage,
                mapped_at_creation: false,
            })
        };
        let [input, output] = [BYTES; 2].map(|size| make(size, operand));
        let [arena, constants] = [buffers.arena, buffers.constants].map(|size| make(size, operand));
        let readback = make(BYTES, Usage::MAP_READ | Usage::COPY_DST);
        let kind = if is_software { Usage::STORAGE } else { Usage::UNIFORM };
        let params = make(16, kind | Usage::COPY_DST);
        queue.write_buffer(&params, 0, bytemuck::bytes_of(&(N_ELEMENTS as u32)));
        queue.write_buffer(&constants, buffers.one_offset, bytemuck::cast_slice(one));

        let mut known: Vec<Operands> = Vec::new();
        let mut groups = Vec::new();
        let mut dispatches = Vec::new();
        for operands in operands {
            let at = known.iter().position(|other| other == operands).unwrap_or(known.len());
            dispatches.push(at);
            if at < known.len() {
                continue;
            }
            known.push(*operands);
            let resource = |buffer, offset, size| {
                wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                    buffer,
                    offset,
                    size: NonZeroU64::new(size),
                })
            };
            let all = [&input, &output, &arena, &constants];
            let bound = operands.iter().map(|o| resource(all[o.buffer as usize], o.offset, o.length));
            let entries: Vec<_> = std::iter::once(resource(&params, 0, 16))
                .chain(bound)
                .enumerate()
                .map(|(i, resource)| wgpu::BindGroupEntry { binding: i as u32, resource })
                .collect();
            groups.push(device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: None,
                layout: &pipeline.get_bind_group_layout(0),
                entries: &entries,
            }));
        }
        Ok(Self { device, queue, pipeline, groups, dispatches, state, input, output, readback })
    }

    /// Records all dispatches.
    pub fn record(&self) -> Recorded {
        let mut encoder = self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default()).forget_lifetime();
        let mut last = None;
        for &group in &self.dispatches {
            if last.is_none() || self.state == Rebinding::EachTime {
                pass.set_pipeline(&self.pipeline);
            }
            if last != Some(group) || self.state == Rebinding::EachTime {
                pass.set_bind_group(0, &self.groups[group], &[]);
            }
            last = Some(group);
            pass.dispatch_workgroups(1, 1, 1);
        }
        Recorded { pass, encoder }
    }

    /// Submits a recording.
    pub fn submit(&self, recorded: Recorded) -> wgpu::SubmissionIndex {
        drop(recorded.pass);
        self.queue.submit([recorded.encoder.finish()])
    }

    /// Waits for a submission.
    ///
    /// # Errors
    /// The error of wgpu.
    pub fn wait(&self, index: wgpu::SubmissionIndex) -> Result<()> {
        self.device.poll(wgpu::PollType::Wait { submission_index: Some(index), timeout: None })?;
        Ok(())
    }

    /// Makes a whole run: the input's copy to the device, the dispatches, the result's copy back, one submission and one
    /// wait.
    ///
    /// # Errors
    /// The error of wgpu.
    pub fn run(&self, x: &[u8], y: &mut [u8]) -> Result<()> {
        self.queue.write_buffer(&self.input, 0, x);
        let Recorded { pass, mut encoder } = self.record();
        drop(pass);
        encoder.copy_buffer_to_buffer(&self.output, 0, &self.readback, 0, BYTES);
        let index = self.queue.submit([encoder.finish()]);
        let (sender, mapped) = std::sync::mpsc::channel();
        self.readback.map_async(wgpu::MapMode::Read, .., move |result| {
            // Sending fails only if the receiver stopped waiting.
            let _ = sender.send(result);
        });
        self.wait(index)?;
        mapped.recv()??;
        y.copy_from_slice(&self.readback.get_mapped_range(..).map_err(|e| anyhow!("{e}"))?);
        self.readback.unmap();
        Ok(())
    }
}

/// Builds the plugin's shader for an `Add` of dense f32 tensors of one shape.
fn pipeline(device: &wgpu::Device, is_software: bool) -> wgpu::ComputePipeline {
    let space = if is_software { "storage, read" } else { "uniform" };
    let text = format!(
        "struct Params {{\n  n_items: u32,\n}}\n\
         @group(0) @binding(0) var<{space}> p: Params;\n\
         @group(0) @binding(1) var<storage, read_write> in0: array<f32>;\n\
         @group(0) @binding(2) var<storage, read_write> in1: array<f32>;\n\
         @group(0) @binding(3) var<storage, read_write> out: array<f32>;\n\
         @compute @workgroup_size(256)\n\
         fn main(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>) {{\n\
         let i = id.y * (groups.x * 256u) + id.x;\n\
         if (i >= p.n_items) {{ return; }}\n\
         let x0 = in0[i];\nlet x1 = in1[i];\nlet r = x0 + x1;\nout[i] = r;\n}}\n"
    );
    let source = wgpu::ShaderSource::Wgsl(text.into());
    let module = device.create_shader_module(wgpu::ShaderModuleDescriptor { label: None, source });
    device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: None,
        layout: None,
        module: &module,
        entry_point: Some("main"),
        compilation_options: Default::default(),
        cache: None,
    })
}
