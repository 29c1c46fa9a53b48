//! Ops that make elements from little, or others of them: sequences, constants, other dtypes, counts of n-grams.

use super::elementwise::wrapped;
use super::index::*;
use super::*;
use crate::ops::random;

pub(super) const OPS: &[OpTrials] = &[
    OpTrials::new("Range", &[F32, F64, I16, I32, I64, F16, BF16], |dtype, dice, i| {
        let is_small = matches!(dtype, F16 | BF16);
        let n = match i {
            0 => 1,
            1 => 67,
            2 if !is_small => 1030,
            3 => 0,
            _ => 1 + dice.below(40) as i64,
        };
        // In few bits a limit far away is rounded by more than a step.
        let n = if is_small { n.min(40) } else { n };
        let one = |value: f64| HostTensor::new(dtype, &[], vec![value]);
        let mut delta = random(dtype, dice, &[], (1.0, 9.0));
        if dice.below(2) == 0 {
            delta.values[0] = -delta.values[0];
        }
        let start = random(dtype, dice, &[], (-30.0, 30.0));
        // Between the last element and the one that is none, so that no rounding says how many there are.
        let (from, by) = (start.values[0], delta.values[0]);
        let limit = one(from + by * (n as f64 - 0.5));
        let values: Vec<f64> = (0..n).map(|k| from + k as f64 * by).collect();
        // A multiplication, an addition, and in 16 bits a rounding to the result.
        let bound = |k: i64| sum_bound(dtype, 3, from.abs() + (k as f64 * by).abs());
        let outputs = vec![Expected::within(dtype, &[n], values, (0..n).map(bound).collect())];
        Trial { attributes: Vec::new(), inputs: vec![Some(start), Some(limit), Some(delta)], outputs }
    }),
    OpTrials::new("ConstantOfShape", ANYTHING, |dtype, dice, i| {
        let shape = if i == 3 { vec![2, 0] } else { shape_of(dice, i, 0..=4) };
        let value = anything(dtype, dice, &[1]);
        // Without the attribute it is 0 in f32.
        let is_said = dtype != F32 || i % 2 == 0;
        let constant = Tensor::from_bytes(dtype, &[1], &value.bytes()).expect("one element");
        let attributes = is_said.then_some(("value", AttrValue::Tensor(constant)));
        let value = if is_said { value.values[0] } else { 0.0 };
        Trial {
            attributes: attributes.into_iter().collect(),
            inputs: vec![Some(list(I64, &shape))],
            outputs: vec![Expected::exact(dtype, &shape, vec![value; n_elements(&shape)])],
        }
    }),
    OpTrials::new("EyeLike", ANYTHING, |dtype, dice, i| {
        let shape = shape_of(dice, i, 2..=2);
        let like = if i % 2 == 0 { dtype } else { [F32, I32, BOOL, F16][i as usize / 2 % 4] };
        let x = anything(like, dice, &shape);
        // Also diagonals outside of the matrix.
        let reach = shape[0] + shape[1];
        let k = if i % 3 == 0 { 0 } else { dice.below(2 * reach as u64) as i64 - reach };
        let mut attributes = match i % 3 {
            0 => Vec::new(),
            _ => vec![("k", AttrValue::Int(k))],
        };
        if i % 4 != 0 {
            attributes.push(("dtype", onnx_dtype(dtype)));
        }
        let values = filled(&shape, |index| f64::from(u8::from(index[1] - index[0] == k)));
        Trial { attributes, inputs: vec![Some(x)], outputs: vec![Expected::exact(dtype, &shape, values)] }
    }),
    OpTrials::new("Cast", ANYTHING, |dtype, dice, i| {
        let to = target(i);
        let (x, expected) = cast(dtype, to, dice, i);
        Trial { attributes: vec![("to", onnx_dtype(to))], inputs: vec![Some(x)], outputs: vec![expected] }
    }),
    OpTrials::new("CastLike", ANYTHING, |dtype, dice, i| {
        let to = target(i);
        let (x, expected) = cast(dtype, to, dice, i);
        let like_shape = shape_of(dice, i, 0..=2);
        let like = anything(to, dice, &like_shape);
        Trial { attributes: Vec::new(), inputs: vec![Some(x), Some(like)], outputs: vec![expected] }
    }),
    OpTrials::new("TfIdfVectorizer", &[I32, I64], tf_idf),
];

/// Returns the dtype that a trial casts to: narrow floats at the sizes that have tails.
fn target(i: u64) -> DType {
    ANYTHING[(i as usize + 3) % ANYTHING.len()]
}

/// Elements in another dtype. Left out is what the specification leaves open: floats that an integer's range has not.
fn cast(from: DType, to: DType, dice: &mut Dice, i: u64) -> (HostTensor, Expected) {
    let shape = shape_of(dice, i, 0..=4);
    let x = if is_float(from) && !is_float(to) && to != BOOL {
        let low = if matches!(to, U8 | U16 | U32 | U64) { 0.0 } else { -100.0 };
        random(from, dice, &shape, (low, 100.0))
    } else if is_float(from) {
        // Some beyond the range of the smaller, and some that are just 0.
        let beyond = if from == F64 { 1e300 } else { 1e4 };
        let mut x = anything(from, dice, &shape);
        for value in &mut x.values {
            *value *= [1.0, 1.0, beyond, 0.0][dice.below(4) as usize];
        }
        HostTensor::new(from, &shape, x.values)
    } else {
        anything(from, dice, &shape)
    };
    let value = |&value: &f64| match (is_float(from), is_float(to)) {
        _ if to == BOOL => f64::from(u8::from(value != 0.0)),
        (_, true) => value,
        (true, false) => value.trunc(),
        // The lower bits.
        (false, false) => wrapped(to, value as i128),
    };
    let values: Vec<f64> = x.values.iter().map(value).collect();
    // A value of the dtype stays; another becomes the nearest, or the one beside it.
    let kept = HostTensor::new(to, &shape, values.clone()).values;
    let bound = |(&value, kept): (&f64, f64)| {
        if value == kept || !is_float(to) { 0.0 } else { Rounding::Exact.bound(to, value) }
    };
    let bounds = values.iter().zip(kept).map(bound).collect();
    (x, Expected::within(to, &shape, values, bounds))
}

/// Counts of n-grams of a pool in sequences of few tokens.
fn tf_idf(dtype: DType, dice: &mut Dice, i: u64) -> Trial {
    let shape = match i {
        0 => vec![1],
        1 => vec![67],
        2 => vec![5, 130],
        _ => shape_of(dice, i, 1..=2),
    };
    const N_TOKENS: u64 = 4;
    let x = random(dtype, dice, &shape, (0.0, N_TOKENS as f64));
    // Some of all 1-grams, 2-grams and 3-grams, each once.
    let (mut pool, mut firsts, mut grams) = (Vec::new(), Vec::new(), Vec::new());
    for n in 1..=3u32 {
        firsts.push(pool.len() as i64);
        let all = shuffled(dice, N_TOKENS.pow(n) as usize);
        for gram in &all[..1 + dice.below(4) as usize] {
            let token = |k: u32| (*gram as u64 / N_TOKENS.pow(k) % N_TOKENS) as i64;
            let gram: Vec<i64> = (0..n).map(token).collect();
            pool.extend(&gram);
            grams.push(gram);
        }
    }
    // Coordinates in any order, some of which belong to no n-gram.
    let n_out = grams.len() + dice.below(3) as usize;
    let coordinates = &shuffled(dice, n_out)[..grams.len()];
    let n_out = 1 + *coordinates.iter().max().expect("the pool is not empty");
    let (least, most) = [(1, 3), (2, 3), (1, 1), (2, 2), (1, 2)][i as usize % 5];
    let skip_max = dice.below(4) as usize;
    let mode = ["TF", "IDF", "TFIDF"][i as usize % 3];
    let weights: Option<Vec<f32>> =
        (!i.is_multiple_of(4)).then(|| grams.iter().map(|_| dice.between(0.1, 3.0) as f32).collect());

    let (n_rows, row_len) = if shape.len() == 2 { (shape[0] as usize, shape[1]) } else { (1, shape[0]) };
    let mut values = vec![0.0; n_rows * n_out];
    for (row, line) in x.values.chunks(row_len as usize).enumerate() {
        for (k, gram) in grams.iter().enumerate().filter(|(_, gram)| (least..=most).contains(&gram.len())) {
            // A token by itself is not found again with every skip.
            let skips = if gram.len() == 1 { 0..=0 } else { 0..=skip_max };
            let is_at = |at: usize, skip: usize| {
                gram.iter().enumerate().all(|(n, token)| {
                    line.get(at + n * (skip + 1)).is_some_and(|found| *found == *token as f64)
                })
            };
            let found = skips.flat_map(|skip| (0..line.len()).map(move |at| (at, skip)));
            let count = found.filter(|&(at, skip)| is_at(at, skip)).count() as f64;
            let weight = weights.as_ref().map_or(1.0, |weights| f64::from(weights[k]));
            values[row * n_out + coordinates[k]] = match mode {
                "TF" => count,
                "IDF" => count.min(1.0) * weight,
                _ => count * weight,
            };
        }
    }
    let mut attributes = vec![
        ("mode", word(mode)),
        ("min_gram_length", AttrValue::Int(least as i64)),
        ("max_gram_length", AttrValue::Int(most as i64)),
        ("max_skip_count", AttrValue::Int(skip_max as i64)),
        ("ngram_counts", AttrValue::Ints(firsts)),
        ("ngram_indexes", AttrValue::Ints(coordinates.iter().map(|&at| at as i64).collect())),
        ("pool_int64s", AttrValue::Ints(pool)),
    ];
    attributes.extend(weights.clone().map(|weights| ("weights", AttrValue::Floats(weights))));
    let out: Vec<i64> = if shape.len() == 2 { vec![shape[0], n_out as i64] } else { vec![n_out as i64] };
    let outputs = vec![Expected::rounded(F32, &out, values, Rounding::Exact)];
    Trial { attributes, inputs: vec![Some(x.clone())], outputs }
}
