use super::*;
use crate::random::Random;

fn is_skipped() -> bool {
    if !simd::has_tiles() {
        eprintln!("skipped: no products in tiles on this machine or path");
    }
    !simd::has_tiles()
}

fn values(n: usize, seed: u64) -> Vec<f32> {
    let mut values = vec![0.0; n];
    Random::new(seed).fill_normal(0, &mut values);
    values
}

fn rows(data: &[f32], rows: usize, width: usize, stride: usize) -> Rows<'_> {
    Rows { data: &data[..(rows - 1) * stride + width], rows, width, stride }
}

fn transposed(w: &[f32], columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|c| w.iter().skip(c).step_by(columns).copied()).collect()
}

const BOTH: [Products; 2] = [Products::Bf16, Products::F32];

/// Holds `got` against `start + sum a b` of operands as the products round them in f64, up to what `n` roundings of a sum in f32
/// give.
fn check(products: Products, got: f32, start: f32, pairs: impl Iterator<Item = (f32, f32)>, what: &str) {
    let round = |x: f32| match products {
        Products::Bf16 => f64::from(half::bf16::from_f32(x).to_f32()),
        Products::F32 => f64::from(x),
    };
    let additions = if products == Products::F32 { 6.0 } else { 1.0 };
    let (mut sum, mut size, mut n) = (f64::from(start), f64::from(start.abs()), 1.0);
    for (a, b) in pairs {
        let product = round(a) * round(b);
        (sum, size, n) = (sum + product, size + product.abs(), n + additions);
    }
    let tolerance = f64::sqrt(n) * size * 2f64.powi(-23);
    assert!((f64::from(got) - sum).abs() <= tolerance, "{products:?} {what}: {got} instead of {sum}");
}

#[test]
fn products_of_any_shape_and_stride_are_those_of_rounded_operands() {
    if is_skipped() {
        return;
    }
    let shapes = [
        (1, 1, 1),
        (1, 44, 32),
        (2, 16, 1),
        (17, 33, 15),
        (16, 32, 16),
        (31, 64, 45),
        (32, 32, 32),
        (33, 31, 100),
        (64, 44, 70),
        (64, 513, 33),
        (35, 1100, 64),
        (1, 1536, 3),
        (513, 31, 5),
        (1100, 3, 65),
    ];
    for ((m, k, n), products) in shapes.into_iter().flat_map(|shape| BOTH.map(|p| (shape, p))) {
        let (x, w, b) = (values(m * (k + 3), 1), values(k * n, 2), values(n, 3));
        let x = rows(&x, m, k, k + 3);
        let both = [Tiles::new(products, k, n, &w), Tiles::transposed(products, n, k, &transposed(&w, n))];
        for bias in [&b[..], &[]] {
            let outs = both.each_ref().map(|tiles| {
                let mut out = vec![f32::NAN; m * n];
                multiply(tiles, x, bias, &mut out);
                out
            });
            assert_eq!(outs[0], outs[1], "{m}x{k}x{n}: packed from the transpose");
            for (i, got) in outs[0].iter().enumerate() {
                let (r, c) = (i / n, i % n);
                let pairs = x.row(r).iter().copied().zip(w.iter().skip(c).step_by(n).copied());
                check(products, *got, bias.get(c).copied().unwrap_or_default(), pairs, &format!("{m}x{k}x{n} at {r},{c}"));
            }
        }
    }
}

fn transposed_product(products: Products, x: Rows, dy: Rows, out: &mut [f32]) {
    assert_eq!(out.len(), x.width * dy.width);
    // SAFETY: `out` has room (asserted) and is borrowed alone.
    unsafe { multiply_transposed(products, x, dy, OutPointer::rows(out, dy.width)) };
}

#[test]
fn gradients_of_weights_add_the_product_over_rows() {
    if is_skipped() {
        return;
    }
    let shapes = [(1, 1, 1), (1, 40, 33), (31, 16, 64), (32, 32, 32), (33, 65, 17), (100, 7, 96), (513, 45, 1), (1030, 32, 40)];
    for ((m, k, n), products) in shapes.into_iter().flat_map(|shape| BOTH.map(|p| (shape, p))) {
        let (x, dy, there) = (values(m * (k + 5), 1), values(m * (n + 1), 2), values(k * n, 3));
        let (x, dy) = (rows(&x, m, k, k + 5), rows(&dy, m, n, n + 1));
        let mut out = there.clone();
        transposed_product(products, x, dy, &mut out);
        for (i, (got, start)) in out.iter().zip(&there).enumerate() {
            let (r, c) = (i / n, i % n);
            check(products, *got, *start, (0..m).map(|s| (x.row(s)[r], dy.row(s)[c])), &format!("{k}x{m}x{n} at {r},{c}"));
        }
    }
}

#[test]
fn products_of_operands_as_they_lie_do_not_depend_on_the_part_that_is_computed() {
    if is_skipped() {
        return;
    }
    let sizes = [(1, 1, 1), (33, 65, 17), (300, 44, 100), (65, 1100, 33), (40, 64, 1100)];
    let turned = [[false, false], [false, true], [true, false], [true, true]];
    for (((m, k, n), turned), products) in
        sizes.into_iter().flat_map(|size| turned.map(|t| (size, t))).flat_map(|case| BOTH.map(|p| (case, p)))
    {
        let (a, b, there) = (values(m * k, 1), values(k * n, 2), values(m * n, 3));
        let (a_turned, b_turned) = (transposed(&a, k), transposed(&b, n));
        let left = if turned[0] { Operand::new(&a_turned, m).t() } else { Operand::new(&a, k) };
        let right = if turned[1] { Operand::new(&b_turned, k).t() } else { Operand::new(&b, n) };
        let run = |left: Operand, right: Operand, target: Target, out: &mut [f32]| {
            assert!(out.len() >= (left.rows - 1) * n + right.columns);
            // SAFETY: `out` has room (asserted) and is borrowed alone.
            unsafe { multiply_operands(products, left, right, OutPointer::rows(out, n), target) };
        };
        for target in [Target::Fresh, Target::Sum] {
            let mut whole = there.clone();
            run(left, right, target, &mut whole);
            for (i, got) in whole.iter().enumerate() {
                let (r, c) = (i / n, i % n);
                let start = if target == Target::Sum { there[i] } else { 0.0 };
                check(products, *got, start, (0..k).map(|s| (a[r * k + s], b[s * n + c])), &format!("{m}x{k}x{n} {turned:?} at {r},{c}"));
            }
            let (mut parts, middle) = (there.clone(), [m / 2, n / 2]);
            for (rows, columns) in [(0..middle[0], 0..n), (middle[0]..m, 0..middle[1]), (middle[0]..m, middle[1]..n)] {
                if !rows.is_empty() && !columns.is_empty() {
                    let at = rows.start * n + columns.start;
                    run(left.part(rows), right.columns(columns), target, &mut parts[at..]);
                }
            }
            assert_eq!(parts, whole, "{m}x{k}x{n} {turned:?} {products:?} in parts");
        }
    }
}

#[test]
fn operands_round_to_the_nearest_even_and_keep_what_is_not_finite() {
    if is_skipped() {
        return;
    }
    let rounded = [
        (1.0 + 2f32.powi(-8), 1.0),
        (1.0 + 3.0 * 2f32.powi(-8), 1.0 + 2f32.powi(-6)),
        (-1.0 - 2f32.powi(-8) - 2f32.powi(-20), -1.0 - 2f32.powi(-7)),
        (f32::MAX, f32::INFINITY),
        (f32::NEG_INFINITY, f32::NEG_INFINITY),
        (f32::NAN, f32::NAN),
        (1e-40, 0.0),
    ];
    let exact = [1.0 + 2f32.powi(-23), -std::f32::consts::PI, 1.0 + 2f32.powi(-12), f32::MAX / 2.0, f32::NAN];
    let lost = [f32::INFINITY, f32::MAX].map(|value| (Products::F32, value, f32::NAN));
    let rounded = rounded.map(|(value, want)| (Products::Bf16, value, want));
    let exact = exact.map(|value| (Products::F32, value, value));
    // As an activation, as a weight, and as either side of a gradient; other rows and columns stay what they are.
    for (products, value, want) in rounded.into_iter().chain(exact).chain(lost) {
        let (m, k, n) = (40, 35, 50);
        let same = |got: f32, want: f32| got == want || got.is_nan() && want.is_nan();
        let holder = |rows: usize, columns: usize, (r, c): (usize, usize)| {
            let mut matrix = vec![0.0; rows * columns];
            matrix[r * columns + c] = value;
            matrix
        };
        let ones = |n: usize| vec![1.0f32; n];
        let mut out = vec![0.0; m * n];
        let x = holder(m, k, (33, 34));
        multiply(&Tiles::new(products, k, n, &ones(k * n)), rows(&x, m, k, k), &[], &mut out);
        assert!(out.iter().enumerate().all(|(i, o)| same(*o, if i / n == 33 { want } else { 0.0 })), "{value} in x");
        let w = holder(k, n, (34, 2));
        multiply(&Tiles::new(products, k, n, &w), rows(&ones(m * k), m, k, k), &[], &mut out);
        assert!(out.iter().enumerate().all(|(i, o)| same(*o, if i % n == 2 { want } else { 0.0 })), "{value} in w");
        let mut out = vec![0.0; k * n];
        transposed_product(products, rows(&x, m, k, k), rows(&ones(m * n), m, n, n), &mut out);
        assert!(out.iter().enumerate().all(|(i, o)| same(*o, if i / n == 34 { want } else { 0.0 })), "{value} in x^T");
        let dy = holder(m, n, (39, 49));
        let mut out = vec![0.0; k * n];
        transposed_product(products, rows(&ones(m * k), m, k, k), rows(&dy, m, n, n), &mut out);
        assert!(out.iter().enumerate().all(|(i, o)| same(*o, if i % n == 49 { want } else { 0.0 })), "{value} in dy");
    }
}

#[test]
fn threads_have_tiles_of_their_own() {
    if is_skipped() {
        return;
    }
    let (m, k, n) = (64, 300, 200);
    let (x, w) = (values(m * k, 1), values(k * n, 2));
    let run = || {
        let mut out = vec![0.0; m * n];
        multiply(&Tiles::new(Products::F32, k, n, &w), rows(&x, m, k, k), &[], &mut out);
        out
    };
    let want = run();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| (0..50).all(|_| run() == want))).collect();
        assert!(threads.into_iter().all(|thread| thread.join().is_ok_and(|same| same)));
    });
}

#[test]
fn no_rows_and_no_columns_are_no_product() {
    if is_skipped() {
        return;
    }
    let none = |width: usize| Rows { data: &[], rows: 0, width, stride: width };
    multiply(&Tiles::new(Products::F32, 5, 3, &[1.0; 15]), none(5), &[], &mut []);
    let mut out = [f32::NAN; 6];
    multiply(&Tiles::new(Products::Bf16, 0, 3, &[]), Rows { rows: 2, ..none(0) }, &[1.0, 2.0, 3.0], &mut out);
    assert_eq!(out, [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]);
    transposed_product(Products::F32, none(2), none(3), &mut out);
    assert_eq!(out, [1.0, 2.0, 3.0, 1.0, 2.0, 3.0]);
}
