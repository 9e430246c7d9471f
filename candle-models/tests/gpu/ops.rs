//! Operations whose rows do not depend on each other.

use crate::{check, cuda, normal};
use candle_core::{DType, Tensor};
use candle_models::ops::{self, Activation, NormKind};
use candle_models::random::Random;

const ACTIVATIONS: [Activation; 3] = [Activation::Relu, Activation::Gelu, Activation::Silu];

#[test]
fn activations_and_the_gate() {
    let Some(device) = cuda() else { return };
    for (act, shape) in ACTIVATIONS.into_iter().zip([&[1, 1][..], &[5, 37], &[2, 3, 130]]) {
        check(&device, &format!("{act:?}"), &[normal("x", shape)], &[], &|x| Ok(vec![ops::activation(&x[0], act)?]));
    }
    for (rows, width) in [(1, 1), (4, 19), (2, 1300)] {
        let name = format!("gate {rows} x {width}");
        let inputs = [normal("a", &[rows, width]), normal("z", &[rows, width])];
        check(&device, &name, &inputs, &[], &|x| Ok(vec![ops::gate(&x[0], &x[1])?]));
        let halves = |x: &Tensor| ops::gate(&x.narrow(1, 0, width)?, &x.narrow(1, width, width)?);
        check(&device, &format!("{name} of columns"), &[normal("az", &[rows, 2 * width])], &[], &|x| Ok(vec![halves(&x[0])?]));
    }
}

#[test]
fn norms() {
    let Some(device) = cuda() else { return };
    for (rows, width, act) in [(1, 16, Activation::None), (5, 31, Activation::Gelu), (37, 70, Activation::Silu), (3, 300, Activation::Relu)]
    {
        let (x, w, b) = (normal("x", &[rows, width]), normal("w", &[width]), normal("b", &[width]));
        let name = format!("norm {rows} x {width}, {act:?}");
        check(&device, &format!("layer {name}"), std::slice::from_ref(&x), &[w.clone(), b], &|x| {
            Ok(vec![ops::norm(&x[0], NormKind::Layer, 1e-5, &x[1], Some(&x[2]), act)?])
        });
        check(&device, &format!("rms {name}"), &[x], &[w], &|x| Ok(vec![ops::norm(&x[0], NormKind::Rms, 1e-5, &x[1], None, act)?]));
    }
}

#[test]
fn rows_of_tables_added_and_joined() {
    let Some(device) = cuda() else { return };
    // The last one has more rows for one entry than a part of its sum takes, and none for another.
    for (rows, entries, width, columns) in [(1, 1, 1, 1), (3, 5, 7, 2), (6, 9, 130, 4), (300, 3, 5, 2)] {
        let below = if rows > 256 { 2 } else { entries };
        let index: Vec<u32> = (0..rows * columns).map(|i| Random::new(4).below(i as u64, below as u32)).collect();
        let name = format!("{rows} rows, {columns} of {entries} x {width}");
        let table = normal("table", &[entries, width]);
        for act in [Activation::None, Activation::Gelu] {
            check(&device, &format!("{name} added, {act:?}"), &[normal("x", &[rows, width])], std::slice::from_ref(&table), &|x| {
                Ok(vec![ops::add_rows(&x[0], &x[1], index.clone(), columns, act)?])
            });
        }
        check(&device, &format!("{name} joined"), &[normal("x", &[rows, 5])], std::slice::from_ref(&table), &|x| {
            Ok(vec![ops::join_rows(&x[0], &x[1], index.clone(), columns)?])
        });
    }
}

#[test]
fn what_does_not_fit_is_refused_on_the_host() {
    let Some(device) = cuda() else { return };
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &device).unwrap();
    let (x, table) = (zeros(&[2, 3]), zeros(&[4, 3]));
    let outside = ops::add_rows(&x, &table, vec![0, 4], 1, Activation::None).unwrap_err().to_string();
    assert!(outside.starts_with("index 4 in a table of 4 rows"), "{outside}");
    assert!(ops::join_rows(&x, &table, vec![7, 0], 1).is_err());
    assert!(ops::add_rows(&x, &zeros(&[4, 5]), vec![0, 1], 1, Activation::None).is_err());
    assert!(ops::norm(&x, NormKind::Layer, 1e-5, &zeros(&[4]), Some(&zeros(&[4])), Activation::None).is_err());
    assert!(ops::gate(&x, &zeros(&[2, 4])).is_err());
    let conv = |taps: usize, bias: usize| {
        ops::causal_conv(&x, &zeros(&[taps, 3]), &zeros(&[bias]), &zeros(&[2, taps - 1, 3]), &[false, false]).is_err()
    };
    assert!(!conv(16, 3) && conv(17, 3) && conv(4, 2));
    let scan = |states: usize, rows: usize| {
        let packed = zeros(&[2, 3 + 2 * states]);
        ops::selective_scan(&x, &packed, &zeros(&[rows, 3]), &zeros(&[2, states, 3]), &[false, false]).is_err()
    };
    assert!(!scan(256, 257) && scan(257, 258) && scan(4, 4));
}
