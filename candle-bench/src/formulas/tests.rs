//! The nine wrong claims, and what the formulas say instead.

use super::*;

fn close(found: f64, expected: f64) {
    assert!((found - expected).abs() <= 1e-9 * expected.abs().max(1.0), "{found}, expected {expected}");
}

/// H200, dense bf16: data sheet.
const H200: Roofs = Roofs { gflop_per_s: 989_000.0, gb_per_s: 4800.0 };

/// "98% reuse" was the headline of a pool that took 0.554 s where plain allocation took 0.052 s.
#[test]
fn claim_1_reuse_is_no_speed() {
    close(reuse_share(1000, 20), 0.98);
    assert_eq!(speed_in_words(speed_ratio(0.052e6, 0.554e6)), "10.7 times slower");
    assert_eq!(speed_in_words(speed_ratio(0.554e6, 0.052e6)), "10.7 times faster");
}

/// 512 x 512 x 512 in 27.8 ms was called 19.3 GFLOPS.
#[test]
fn claim_2_a_multiply_add_is_two_operations_and_no_more() {
    let found = gflop_per_s(product_flop(512, 512, 512), 27_800.0);
    assert!((found - 9.66).abs() < 0.005, "{found}");
    close(product_flop(3, 5, 7), 210.0);
}

/// "104 GFLOPS average" was the rate of the smallest of several sizes; the largest ran at 17 TFLOP/s.
#[test]
fn claim_3_an_average_is_all_work_over_all_time() {
    let at = |n: usize, gflop: f64| (product_flop(n, n, n), product_flop(n, n, n) / gflop / 1e3);
    let sizes = [at(512, 104.0), at(2048, 4_000.0), at(8192, 17_000.0)];
    let found = average_gflop_per_s(&sizes);
    assert!(found > 10_000.0 && found < 17_000.0, "{found}");
    close(average_gflop_per_s(&sizes[..1]), 104.0);
    // Twice the time for as much work again: not the mean of the rates, which is 75.
    close(average_gflop_per_s(&[(1e9, 1e4), (1e9, 2e4)]), 200.0 / 3.0);
}

/// "5.59 times" of mixed precision: the baseline traced anew at every call, and both sides computed in f32.
#[test]
fn claim_4_a_speedup_needs_an_equal_baseline() {
    let full = Side { us: 5590.0, dtype: "f32", warm_up_calls: 10, preparation: Preparation::Before };
    let bf16 = Side { us: 1000.0, dtype: "bf16", ..full };
    assert_eq!(precision_speedup(full, bf16), Ok(5.59));
    assert_eq!(precision_speedup(bf16, full).map(speed_in_words), Ok("5.59 times slower".to_owned()));
    let refused = |baseline, narrow| precision_speedup(baseline, narrow).unwrap_err().to_string();
    assert!(refused(Side { preparation: Preparation::EveryCall, ..full }, bf16).contains("prepared at every call"));
    assert!(refused(full, Side { dtype: "f32", ..bf16 }).contains("same dtype"));
    assert!(refused(Side { warm_up_calls: 0, ..full }, bf16).contains("warmed up"));
    assert!(refused(Side { us: f64::NAN, ..full }, bf16).starts_with("baseline:"));
}

/// 0.24% of peak and a peak of 50 TFLOP/s in one report: the share was of another peak.
#[test]
fn claim_5_a_share_is_of_the_peak_beside_it() {
    let peak = 50_000.0;
    // At 50 TFLOP/s, 0.24% are 120 GFLOP/s; the same rate is 0.012% of an H200's peak.
    let rate = 120.0;
    close(share_of_roof(rate, peak).unwrap(), 0.0024);
    let other = share_of_roof(rate, H200.gflop_per_s).unwrap();
    assert!((other * H200.gflop_per_s - rate).abs() < 1e-9 && other < 0.0002, "{other}");
}

/// "125 times" by asynchronous copies, 0.089 s to 0.001 s: nothing was warmed up, and the data lay on the device already.
#[test]
fn claim_6_overlap_hides_at_most_the_shorter_part() {
    let error = overlap_efficiency(40_000.0, 49_000.0, 1_000.0).unwrap_err();
    assert_eq!(error, Refused::FasterThanItsParts { both_us: 1_000.0, longer_us: 49_000.0 });
    close(overlap_efficiency(40_000.0, 50_000.0, 50_000.0).unwrap(), 1.0);
    close(overlap_efficiency(40_000.0, 50_000.0, 70_000.0).unwrap(), 0.5);
    close(overlap_efficiency(40_000.0, 50_000.0, 90_000.0).unwrap(), 0.0);
    // Noise on one side, and overlap that costs more than it hides on the other.
    close(overlap_efficiency(40_000.0, 50_000.0, 49_000.0).unwrap(), 1.0);
    close(overlap_efficiency(40_000.0, 50_000.0, 120_000.0).unwrap(), 0.0);
    assert!(overlap_efficiency(0.0, 1.0, 1.0).unwrap_err().to_string().starts_with("copy:"));
}

/// 245.8 calls until a compilation had paid for itself, where compilation over what a call saves is 21.
#[test]
fn claim_7_break_even_is_over_what_a_call_saves() {
    close(break_even_calls(2.1e6, 108_500.0, 8_500.0).unwrap(), 21.0);
    assert_eq!(break_even_calls(1.0, 100.0, 100.0), None);
    assert_eq!(break_even_calls(1.0, 100.0, 120.0), None);
    assert_eq!(break_even_calls(1.0, 100.0, f64::NAN), None);
}

/// "1e12 GB/s" were bytes a second.
#[test]
fn claim_8_a_gigabyte_is_a_billion_bytes() {
    close(gb_per_s(1e12, 1e6), 1000.0);
    close(gb_per_s(4e4, 4.0), 10.0);
}

/// An intensity of 21.33 at a ridge of 50 was called compute bound.
#[test]
fn claim_9_below_the_ridge_is_memory_bound() {
    let roofs = Roofs { gflop_per_s: 50_000.0, gb_per_s: 1000.0 };
    close(roofs.ridge_flop_per_byte(), 50.0);
    assert_eq!(roofs.bound(21.33), Bound::Memory);
    assert_eq!(roofs.bound(51.0), Bound::Compute);
    close(roofs.attainable_gflop_per_s(21.33), 21_330.0);
    close(roofs.attainable_gflop_per_s(100.0), 50_000.0);
}

/// A product of square bf16 matrices has an intensity of n / 3, and so leaves the memory's roof at three times the ridge.
#[test]
fn a_square_product_on_an_h200() {
    let bound = |n: usize| H200.bound(intensity_flop_per_byte(product_flop(n, n, n), 3.0 * 2.0 * (n * n) as f64));
    assert_eq!((H200.ridge_flop_per_byte().round(), bound(618), bound(619)), (206.0, Bound::Memory, Bound::Compute));
    assert_eq!((bound(512), bound(8192)), (Bound::Memory, Bound::Compute));
}

#[test]
fn a_call_far_above_both_roofs_is_overhead() {
    let roofs = Roofs { gflop_per_s: 100.0, gb_per_s: 10.0 };
    // 1e6 operations on 1e6 bytes: 100 us for the bytes, 10 us for the arithmetic.
    assert_eq!(roofs.bound_of_call(1e6, 1e6, 110.0), Bound::Memory);
    assert_eq!(roofs.bound_of_call(1e6, 1e6, 390.0), Bound::Memory);
    assert_eq!(roofs.bound_of_call(1e6, 1e6, 410.0), Bound::Overhead);
    assert_eq!(roofs.bound_of_call(1e6, 1e4, 11.0), Bound::Compute);
}

#[test]
fn a_rate_above_the_roof_is_refused() {
    close(share_of_roof(104.0, 100.0).unwrap(), 1.04);
    let error = share_of_roof(106.0, 100.0).unwrap_err().to_string();
    assert!(error.starts_with("106.0 is 106% of a roof of 100.0"), "{error}");
    assert!(share_of_roof(f64::NAN, 100.0).is_err() && share_of_roof(1.0, 0.0).is_err());
}

#[test]
fn words_follow_the_ratio() {
    let words = [1.001, 1.2, 0.5, 0.0, f64::NAN].map(speed_in_words);
    assert_eq!(words, ["as fast", "1.20 times faster", "2.00 times slower", "not compared", "not compared"]);
    close(calls_per_s(4.0), 250_000.0);
    close(training_flop(10.0), 60.0);
}

#[test]
fn four_that_do_the_work_of_two_are_half_as_efficient() {
    close(parallel_efficiency(100.0, 200.0, 4), 0.5);
    close(parallel_efficiency(100.0, 100.0, 1), 1.0);
}
