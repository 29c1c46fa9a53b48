//! Sizes, padding and cropping, without a device.

use super::elements::{copy_common, element_of};
use super::*;
use devbay_core::tensor::{BF16, BOOL, I8, I64, U4, U8};

fn sizes(text: &str) -> Sizes {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn a_length_goes_up_to_the_next_size() {
    let listed = sizes("8, 16,32");
    assert_eq!([1, 8, 9, 32].map(|length| listed.fit(length)), [Some(8), Some(8), Some(16), Some(32)]);
    assert_eq!([0, 33].map(|length| listed.fit(length)), [None, None]);
    let multiples = sizes("*8");
    assert_eq!([1, 8, 9].map(|length| multiples.fit(length)), [Some(8), Some(8), Some(16)]);
    assert_eq!([0, usize::MAX].map(|length| multiples.fit(length)), [None, None]);
}

#[test]
fn sizes_that_are_none_are_refused() {
    for text in ["", "*", "*0", "0,8", "8,8", "16,8", "8,", "-8", "eight", "*8,16"] {
        let error = text.parse::<Sizes>().expect_err(text);
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{text}");
    }
}

/// Returns a tensor of bytes that count up from 1, copied into one of other extents filled with zeroes.
fn brought(from_shape: &[usize], to_shape: &[usize]) -> Vec<u8> {
    let from: Vec<u8> = (1..).take(from_shape.iter().product()).collect();
    let mut to = vec![0; to_shape.iter().product()];
    copy_common(1, (from_shape, &from), (to_shape, &mut to));
    to
}

#[test]
fn what_two_shapes_have_in_common_is_copied() {
    assert_eq!(brought(&[2, 2], &[2, 3]), [1, 2, 0, 3, 4, 0]);
    assert_eq!(brought(&[2, 3], &[2, 2]), [1, 2, 4, 5]);
    assert_eq!(brought(&[2, 2], &[3, 2]), [1, 2, 3, 4, 0, 0]);
    assert_eq!(brought(&[3, 1], &[1, 3]), [1, 0, 0]);
    assert_eq!(brought(&[2, 2, 2], &[2, 1, 2]), [1, 2, 5, 6]);
    assert_eq!(brought(&[2, 0], &[2, 2]), [0, 0, 0, 0]);
    assert_eq!(brought(&[0, 2], &[1, 2]), [0, 0]);
    assert_eq!(brought(&[], &[]), [1]);
}

#[test]
fn elements_of_several_bytes_stay_together() {
    let from: Vec<u8> = (0..8).collect();
    let mut to = vec![9; 4];
    copy_common(2, (&[2, 2], &from), (&[2, 1], &mut to));
    assert_eq!(to, [0, 1, 4, 5]);
}

#[test]
fn an_element_has_the_value_or_there_is_none() {
    assert_eq!(element_of(F32, -1.5), Some(bytemuck::bytes_of(&-1.5f32).to_vec()));
    assert_eq!(element_of(I64, -3.0), Some(bytemuck::bytes_of(&-3i64).to_vec()));
    assert_eq!(element_of(BOOL, 1.0), Some(vec![1]));
    assert_eq!(element_of(BF16, 0.0), Some(vec![0, 0]));
    for (dtype, value) in [
        (I64, 0.5),
        (I8, 128.0),
        (U8, -1.0),
        (BOOL, 2.0),
        (BF16, 1.0),
        (I64, f64::NAN),
        (I64, 1e300),
        (U4, 0.0),
    ] {
        assert_eq!(element_of(dtype, value), None, "{value}");
    }
}

fn port(name: &str, dims: &[&str]) -> Port {
    let dim = |text: &&str| text.parse().map_or_else(|_| Dim::Unknown(Arc::from(*text)), Dim::Known);
    let ty = TensorType { dtype: F32, shape: Some(dims.iter().map(dim).collect()) };
    Port::of_tensor(Arc::from(name), Some(ty))
}

/// Applies options to two inputs.
fn buckets(symbols: &[&str], padding: &[(&str, f64)]) -> Result<Buckets> {
    let options = BucketOptions {
        sizes: symbols.iter().map(|&name| (name.to_owned(), sizes("4,8"))).collect(),
        padding: padding.iter().map(|&(name, value)| (name.to_owned(), value)).collect(),
        check: None,
    };
    Buckets::new(&options, &[port("a", &["n", "m", "3"]), port("b", &["m"])], &[])
}

#[test]
fn options_that_do_not_fit_the_model_are_refused() {
    assert!(buckets(&["n", "m"], &[("a", 1.0), ("b", 2.0)]).is_ok());
    for (symbols, padding, word) in [
        (vec!["k"], vec![], "no input of the model's has an extent `k`"),
        (vec!["n", "n"], vec![], "given twice"),
        (vec!["n"], vec![("c", 1.0)], "which is no input"),
        (vec!["n"], vec![("b", 1.0)], "which is not padded"),
        (vec!["n"], vec![("a", 1.0), ("a", 1.0)], "has one already"),
    ] {
        let error = buckets(&symbols, &padding).err().expect(word);
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        assert!(error.text().contains(word), "{error}");
    }
    let listed =
        BucketOptions { sizes: vec![("n".to_owned(), Sizes::Listed(Vec::new()))], ..Default::default() };
    assert!(Buckets::new(&listed, &[port("a", &["n"])], &[]).is_err());
}

#[test]
fn inputs_are_padded_together() {
    let buckets = buckets(&["n", "m"], &[]).unwrap_or_else(|error| panic!("{error}"));
    let fit = |a: &[usize], b: &[usize]| buckets.fit([a, b].into_iter());
    let padded = fit(&[3, 9, 3], &[9]).ok().flatten().expect("n is padded, m is longer than all sizes");
    assert_eq!(padded.shapes, [vec![4, 9, 3], vec![9]]);
    assert_eq!(padded.wanted(&buckets), "`n` of 4 instead of 3");
    assert!(fit(&[4, 8, 3], &[8]).is_ok_and(|fit| fit.is_none()));
    let error = fit(&[3, 7, 3], &[6]).err().expect("m has two lengths");
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.text().contains("`m` is 7 in input `a` and 6 in input `b`"), "{error}");
}
