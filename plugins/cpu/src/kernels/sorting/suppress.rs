//! NonMaxSuppression: boxes by falling score, without those that overlap one that was taken before.

use crate::device::CpuDevice;
use crate::kernels::cost;
use crate::kernels::geometry::extents::{expect_output, extents};
use crate::stream::CpuStream;
use devbay_ops::descriptor;
use devbay_plugin_api::abi::{DEVBAY_KERNEL_DATA_SHAPE, DEVBAY_KERNEL_DETERMINISTIC};
use devbay_plugin_api::reserve::Size;
use devbay_plugin_api::sdk::*;

/// The kernels of this file.
pub const KERNELS: &[Kernel<CpuDevice>] = &[descriptor("NonMaxSuppression", 11, non_max_suppression)
    .types(&[TypeVar::of(&[F32]), TypeVar::of(&[I64])])
    .flags(DEVBAY_KERNEL_DETERMINISTIC | DEVBAY_KERNEL_DATA_SHAPE)
    .cost(cost)
    .doc("positions of batch, class and box")];

fn cost(request: &PrepareRequest<'_, CpuDevice>) -> Result<Cost> {
    cost::per_input(request, 32)
}

/// A box while it is sorted: its score and position.
type Scored = (f32, u32);

/// Runs on one thread: where a box is written depends on how many came before it.
struct Suppression {
    host: Host,
    batches: usize,
    classes: usize,
    boxes: usize,
    centred: bool,
    /// Inputs that are there: the most boxes of a class, and the two thresholds.
    given: [bool; 3],
}

fn non_max_suppression(request: &PrepareRequest<'_, CpuDevice>) -> Result<Prepared> {
    let (boxes, scores) = (extents(request.required_input(0)?)?, extents(request.required_input(1)?)?);
    let ([batches, n, 4], [of_scores, classes, scored]) = (&boxes[..], &scores[..]) else {
        return Err(Error::invalid(format!("boxes of {boxes:?} and scores of {scores:?}")));
    };
    if batches != of_scores || n != scored {
        return Err(Error::invalid(format!("boxes of {boxes:?} and scores of {scores:?}")));
    }
    let given = [2, 3, 4].map(|i| request.input(i).is_some());
    for i in (2..5).filter(|&i| given[i - 2]) {
        match request.required_input(i)?.n_elements() {
            1 => {}
            found => return Err(Error::invalid(format!("input {i} has {found} elements, expected 1"))),
        }
    }
    let most = (Size::of(*batches) * *classes * boxes[1]).get("the boxes that are kept")?;
    expect_output(request, 0, &[most, 3])?;
    let centred = match request.attrs.int("center_point_box", 0)? {
        0 => false,
        1 => true,
        found => return Err(Error::invalid(format!("center_point_box is {found}, expected 0 or 1"))),
    };
    let host = request.host;
    let kernel = Suppression { host, batches: *batches, classes: *classes, boxes: *n, centred, given };
    Prepared::new(kernel).with_room(Size::of((*n).max(1)) * (2 * size_of::<Scored>()), 64)
}

impl Launch<CpuDevice> for Suppression {
    fn launch(&self, _stream: &CpuStream, operands: &mut Operands<'_>) -> Result<()> {
        let (boxes, scores) = (operands.input::<f32>(0), operands.input::<f32>(1));
        let first = |i: usize| operands.input::<f32>(i)[0];
        let most = if self.given[0] { operands.input::<i64>(2)[0] } else { 0 };
        let most = usize::try_from(most).unwrap_or(0).min(self.boxes);
        let overlap = if self.given[1] { first(3) } else { 0.0 };
        let least = self.given[2].then(|| first(4));
        // SAFETY: the workspace has room for twice as many, and is this launch's own.
        let room = unsafe {
            core::slice::from_raw_parts_mut(operands.workspace_ptr::<Scored>(), 2 * self.boxes.max(1))
        };
        let (sorted, taken) = room.split_at_mut(self.boxes.max(1));
        let output = operands.output::<i64>(0);
        let mut found = 0;
        let n_classes = if self.boxes == 0 { 0 } else { self.batches * self.classes };
        let mut pace = self.host.pace();
        for class in 0..n_classes {
            let batch = class / self.classes;
            let of_batch = &boxes[batch * self.boxes * 4..][..self.boxes * 4];
            let place = |i: u32| {
                let i = i as usize * 4;
                corners([of_batch[i], of_batch[i + 1], of_batch[i + 2], of_batch[i + 3]], self.centred)
            };
            pace.work(32 * self.boxes)?;
            let mut n = 0;
            for (i, &score) in scores[class * self.boxes..][..self.boxes].iter().enumerate() {
                if least.is_none_or(|least| score > least) {
                    sorted[n] = (score, i as u32);
                    n += 1;
                }
            }
            sorted[..n].sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            let mut n_taken = 0;
            for &(score, i) in &sorted[..n] {
                if n_taken == most {
                    break;
                }
                pace.work(32 * n_taken)?;
                let hides = |&(_, other): &Scored| overlaps(place(other), place(i), overlap);
                if taken[..n_taken].iter().any(hides) {
                    continue;
                }
                taken[n_taken] = (score, i);
                n_taken += 1;
                let position = [batch, class % self.classes, i as usize].map(|n| n as i64);
                output[found * 3..][..3].copy_from_slice(&position);
                found += 1;
            }
        }
        let extents = operands.extents_ptr();
        // SAFETY: the host lends room for the true extents of the one output, which has two.
        unsafe { extents.cast::<[i64; 2]>().write([found as i64, 3]) };
        Ok(())
    }
}

/// The smallest and largest coordinates of a box: `[[y, y], [x, x]]`, or of a centred one the other way round.
fn corners(given: [f32; 4], centred: bool) -> [[f32; 2]; 2] {
    let [a, b, c, d] = given;
    match centred {
        true => [[a - c / 2.0, a + c / 2.0], [b - d / 2.0, b + d / 2.0]],
        false => [[a.min(c), a.max(c)], [b.min(d), b.max(d)]],
    }
}

/// Returns whether two boxes share more than a part of what they cover together.
fn overlaps(a: [[f32; 2]; 2], b: [[f32; 2]; 2], part: f32) -> bool {
    let length = |[low, high]: [f32; 2]| high - low;
    let shared = |i: usize| length([a[i][0].max(b[i][0]), a[i][1].min(b[i][1])]);
    let area = |sides: [[f32; 2]; 2]| length(sides[0]) * length(sides[1]);
    let (rows, cols) = (shared(0), shared(1));
    if !(rows > 0.0 && cols > 0.0) {
        return false;
    }
    let both = area(a) + area(b) - rows * cols;
    area(a) > 0.0 && area(b) > 0.0 && both > 0.0 && rows * cols / both > part
}

#[cfg(test)]
mod tests {
    use crate::isa::Isa;
    use crate::kernels::test_host::{Array, run};

    #[test]
    fn boxes_that_overlap_are_left_out() {
        // Two that share a third, corners in either order, and one apart; equal scores come in their order.
        let boxes = [0.0f32, 0.0, 1.0, 2.0, 1.0, 3.0, 0.0, 1.0, 5.0, 5.0, 6.0, 6.0];
        let scores = [0.5f32, 0.9, 0.9];
        let taken = |most: i64, part: f32, least: f32, n_boxes: usize| {
            let inputs = [
                Some(Array::of(&[1, 3, 4], &boxes)),
                Some(Array::of(&[1, 1, n_boxes], &scores[..n_boxes])),
                Some(Array::of(&[1], &[most])),
                Some(Array::of(&[], &[part])),
                Some(Array::of(&[1], &[least])),
            ];
            let output = [Some(Array::empty::<i64>(&[3, 3]))];
            let found = run(Isa::Baseline, "NonMaxSuppression", &[], &inputs, &output)?;
            let [Some(positions), Some(extents)] = &found[..] else {
                panic!("expected positions and extents");
            };
            let n = extents.elements::<i64>()[0] as usize;
            let positions = positions.elements::<i64>();
            Ok(positions.chunks(3).take(n).map(|position| position[2]).collect::<Vec<_>>())
        };
        assert_eq!(taken(3, 0.3, 0.0, 3), Ok(vec![1, 2]));
        assert_eq!(taken(3, 0.4, 0.0, 3), Ok(vec![1, 2, 0]));
        assert_eq!(taken(3, 0.4, 0.5, 3), Ok(vec![1, 2]));
        assert_eq!(taken(1, 0.4, 0.0, 3), Ok(vec![1]));
        assert_eq!(taken(-1, 0.4, 0.0, 3), Ok(vec![]));
        let error: String = taken(1, 0.4, 0.0, 2).expect_err("fewer scores than boxes");
        assert!(error.contains("boxes of [1, 3, 4]"), "{error}");
    }
}
