use super::*;
use crate::ops::check::{check, refuses};

#[test]
fn every_form_of_coordinates_is_the_reference() {
    for (grid, channels) in [([1, 5], 2), ([3, 4], 1), ([4, 2], 17)] {
        for periodic in [false, true] {
            check(Coordinates { grid, channels, periodic }, &[grid[0] * grid[1] * channels]);
        }
    }
    refuses(&Coordinates { grid: [2, 3], channels: 2, periodic: false }, &[11]);
}

#[test]
fn a_periodic_grid_has_no_edge() {
    let op = Coordinates { grid: [2, 4], channels: 1, periodic: true };
    let mut y = [9.0; 2 * 4 * 9];
    op.table().forward(&[&[7.0; 8]], &mut y);
    // Half around down, a quarter across: the channel, then cosine and sine of both, of their sum and of their difference.
    let expected = [7.0, -1.0, 0.0, 0.0, 1.0, 0.0, -1.0, 0.0, 1.0];
    assert!(y[5 * 9..][..9].iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-6), "{y:?}");
}

#[test]
fn every_form_of_a_window_is_the_reference() {
    for (grid, margin, channels) in [([1, 5], [0, 2], 2), ([3, 4], [1, 0], 1), ([2, 3], [2, 1], 17), ([2, 2], [0, 0], 3)] {
        let [small, large] = [[0, 0], margin].map(|margin| (grid[0] + 2 * margin[0]) * (grid[1] + 2 * margin[1]) * channels);
        check(Window::pad(grid, margin, channels), &[small]);
        check(Window::crop(grid, margin, channels), &[large]);
        refuses(&Window::crop(grid, margin, channels), &[large + 1]);
    }
}

#[test]
fn a_crop_turns_a_pad_back() {
    let (pad, crop) = (Window::pad([2, 3], [1, 2], 2), Window::crop([2, 3], [1, 2], 2));
    let (x, mut wide, mut back) = ((0..12).map(|i| i as f32).collect::<Vec<_>>(), [9.0; 4 * 7 * 2], [9.0; 12]);
    pad.forward(&[&x], &mut wide);
    assert_eq!(wide.iter().filter(|x| **x != 0.0).count(), 11);
    crop.forward(&[&wide], &mut back);
    assert_eq!(back[..], x[..]);
}
