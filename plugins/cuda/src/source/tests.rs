//! Small shaders and their CUDA C.

use super::*;
use devbay_plugin_api::abi::DEVBAY_STATUS_UNSUPPORTED;

/// Returns the source behind the prelude.
fn written(wgsl: &str) -> String {
    let source = from_wgsl("test", wgsl).unwrap_or_else(|e| panic!("{e}"));
    source.text[PRELUDE.len()..].to_owned()
}

#[test]
fn a_kernel_with_parameters_and_buffers() {
    let source = from_wgsl(
        "relu",
        "struct Params { n: u32, k: f32 }
         @group(0) @binding(0) var<uniform> p: Params;
         @group(0) @binding(2) var<storage, read_write> y: array<f32>;
         @group(0) @binding(1) var<storage, read_write> x: array<f32>;
         @compute @workgroup_size(64)
         fn main(@builtin(global_invocation_id) id: vec3<u32>) {
           if (id.x >= p.n || id.x >= arrayLength(&x)) { return; }
           y[id.x] = max(x[id.x] * p.k, 0.0);
         }",
    )
    .unwrap();
    assert_eq!(source.entry, "k_relu");
    assert_eq!(source.block, [64, 1, 1]);
    let params = [Param::Uniform(8), Param::Storage(1), Param::Length(1, 4), Param::Storage(2)];
    assert_eq!(source.params, params);
    let text = &source.text[PRELUDE.len()..];
    assert!(
        text.contains(
            "extern \"C\" __global__ void __launch_bounds__(64) k_relu(const __grid_constant__ S2 g0_p, \
             float* g2_x, u32 n2, float* g1_y) {"
        ),
        "{text}"
    );
    assert!(text.contains("static_assert(sizeof(S2) == 8 && alignof(S2) == 4, \"\");"), "{text}");
    assert!(text.contains("w_max("), "{text}");
}

#[test]
fn integers_wrap_and_divide_as_wgsl_says() {
    let text = written(
        "@group(0) @binding(1) var<storage, read_write> x: array<i32>;
         @compute @workgroup_size(1) fn main() {
           x[0] = x[1] / x[2] + x[3] % x[4] - (x[5] << u32(x[6]));
         }",
    );
    for name in ["w_div(", "w_add(", "w_mod(", "w_sub(", "w_shl("] {
        assert!(text.contains(name), "{name} in {text}");
    }
}

#[test]
fn a_continue_runs_what_continues_the_loop() {
    let text = written(
        "@group(0) @binding(1) var<storage, read_write> x: array<u32>;
         @compute @workgroup_size(1) fn main() {
           for (var i = 0u; i < 9u; i++) {
             switch (x[i]) { case 1u: { continue; } case 2u, 3u: { x[i] = 0u; } default: { } }
             x[i] += 1u;
           }
           for (var i = 0u; i < 9u; i++) { x[i] = i; }
         }",
    );
    assert_eq!(text.matches("goto continue0;").count(), 1, "{text}");
    assert_eq!(text.matches("} continue0:;").count(), 1, "{text}");
    assert_eq!(text.matches("for (;;) {").count(), 2, "{text}");
}

#[test]
fn functions_are_handed_the_buffers_that_they_use() {
    let text = written(
        "var<private> seen: u32;
         var<workgroup> tile: array<vec4<f32>, 16>;
         const TABLE: array<f32, 2> = array(1.0, 2.0);
         @group(0) @binding(1) var<storage, read_write> x: array<f32>;
         @group(0) @binding(2) var<storage, read_write> y: array<f32>;
         fn last(k: ptr<function, u32>) -> f32 { *k += 1u; seen += 1u; return x[arrayLength(&x) - *k]; }
         @compute @workgroup_size(8, 2)
         fn main(@builtin(local_invocation_index) i: u32) {
           var k = i;
           tile[i] = vec4(vec2(last(&k)), TABLE[i & 1u], 0.0);
           workgroupBarrier();
           y[i] = tile[15u - i].z + f32(k + seen);
         }",
    );
    assert!(text.contains("W float f0_last(u32& a0_k, u32& g0_seen, float* g2_x, u32 n2) {"), "{text}");
    assert!(text.contains("__shared__ Arr<Vec<float, 4>, 16> g1_tile;"), "{text}");
    assert!(text.contains("f0_last(v0_k, g0_seen, g2_x, n2)"), "{text}");
    assert!(text.contains("__device__ const Arr<float, 2> c0 = "), "{text}");
    assert!(text.contains("__syncthreads();"), "{text}");
}

#[test]
fn gaps_of_structs_are_kept() {
    let text = written(
        "struct Item { a: f32, b: vec3<f32>, c: vec2<u32> }
         struct Params { items: array<Item, 2>, n: u32 }
         @group(0) @binding(0) var<uniform> p: Params;
         @group(0) @binding(1) var<storage, read_write> x: array<Item>;
         @compute @workgroup_size(1) fn main() {
           x[0] = Item(p.items[1].a, p.items[0].b, vec2(p.n, 1u));
           x[1] = x[0];
         }",
    );
    assert!(text.contains("static_assert(sizeof(S4) == 48 && alignof(S4) == 16"), "{text}");
}

#[test]
fn what_is_not_covered_is_refused_by_name() {
    let refused = |wgsl: &str, what: &str| {
        let error = from_wgsl("test", wgsl).unwrap_err();
        assert_eq!(error.status(), DEVBAY_STATUS_UNSUPPORTED, "{error}");
        assert!(error.text().contains(what), "{what} in {error}");
    };
    refused("override n: u32; @compute @workgroup_size(1) fn main() {}", "override");
    refused(
        "@group(0) @binding(1) var<storage, read_write> x: array<mat2x2<f32>>;
         @compute @workgroup_size(1) fn main() { x[0] = transpose(x[0]); }",
        "Matrix",
    );
    refused(
        "struct S { a: vec3<f32>, b: f32 }
         @group(0) @binding(1) var<storage, read_write> x: array<S>;
         @compute @workgroup_size(1) fn main() { x[0].b = x[0].a.x; }",
        "vec3's padding",
    );
    refused(
        "@group(0) @binding(1) var<storage, read_write> x: array<f32>;
         @compute @workgroup_size(1) fn main() { x[0] = ldexp(x[0], 2); }",
        "Ldexp",
    );
}

#[test]
fn a_text_that_is_not_valid_is_an_error_with_its_words() {
    let error = from_wgsl("test", "@compute @workgroup_size(1) fn main() { let x: u32 = 1.5; }").unwrap_err();
    assert!(error.text().contains("shader test"), "{error}");
}
