use super::*;
use crate::ops::check::{check, normal, refuses};

fn op([queries, elements, heads, width]: [usize; 4]) -> (SetAttention, [usize; 3]) {
    let op = SetAttention::new([queries, elements], heads, width).unwrap();
    (op, [queries * width, elements * 2 * width, elements])
}

#[test]
fn every_form_of_it_is_the_reference() {
    for sizes in [[1, 1, 1, 1], [1, 7, 2, 8], [7, 7, 4, 16], [3, 5, 1, 3]] {
        let (op, widths) = op(sizes);
        check(op, &widths);
    }
}

/// Who is absent changes nothing, and where nobody is there the answer is 0.
#[test]
fn the_absent_have_no_say() {
    let (op, _) = op([2, 3, 2, 4]);
    let [q, mut kv] = [8, 24].map(|n| normal(&n.to_string(), &[n]).to_vec1::<f32>().unwrap());
    let run = |kv: &[f32], presence: [f32; 3]| {
        let mut y = [9.0; 8];
        op.forward(&[&q, kv, &presence], &mut y);
        y
    };
    let two = run(&kv, [1.0, 0.0, 0.5]);
    kv[8..16].fill(1e30);
    assert_eq!(run(&kv, [1.0, -3.0, 0.5]), two);
    assert_eq!(run(&kv, [0.0; 3]), [0.0; 8]);
    // One alone is its value.
    assert_eq!(run(&kv, [0.0, 0.0, 0.25])[..4], kv[20..24]);
}

/// Elements in another order are the same set.
#[test]
fn the_order_does_not_matter() {
    let (op, _) = op([1, 3, 1, 2]);
    let (q, kv) = ([0.3, -0.2], [0.1, 0.2, 1.0, 2.0, -0.5, 0.4, 3.0, 4.0, 0.9, -1.0, 5.0, 6.0f32]);
    let turned: Vec<f32> = [&kv[8..], &kv[..8]].concat();
    let [mut a, mut b] = [[0.0f32; 2]; 2];
    op.forward(&[&q, &kv, &[1.0, 0.5, 0.0]], &mut a);
    op.forward(&[&q, &turned, &[0.0, 1.0, 0.5]], &mut b);
    assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6), "{a:?} {b:?}");
}

#[test]
fn what_does_not_fit_is_refused() {
    for (sizes, heads, width) in [([0, 1], 1, 1), ([1, 0], 1, 1), ([1, 1], 0, 1), ([1, 1], 1, 0), ([1, 1], 3, 4)] {
        assert!(SetAttention::new(sizes, heads, width).is_err(), "{sizes:?} {heads} {width}");
    }
    let (op, [q, kv, presence]) = op([2, 3, 2, 4]);
    refuses(&op, &[q + 1, kv, presence]);
    refuses(&op, &[q, kv - 1, presence]);
    refuses(&op, &[q, kv, presence + 1]);
    refuses(&op, &[q, kv]);
}
