//! Wilson's interval.

use candle_models::interval::wilson;

/// `statsmodels.stats.proportion.proportion_confint(k, n, method="wilson")`.
#[test]
fn intervals_are_those_of_statsmodels() {
    for (k, n, expected) in [(8.0, 10, [0.490_162_47, 0.943_317_85]), (0.0, 100, [0.0, 0.036_993_498])] {
        let found = wilson(k, n);
        assert!(found.iter().zip(expected).all(|(x, y)| (x - y).abs() < 1e-6), "{found:?}, expected {expected:?}");
    }
    assert_eq!(wilson(0.0, 0), [0.0, 1.0]);
}

/// The ends are the shares from which what was found is 1.96 deviations away.
#[test]
fn intervals_are_wilsons() {
    for (share, n) in [(0.5, 10), (0.9, 100), (0.0125, 40)] {
        for end in wilson(share * f64::from(n), n as usize) {
            let deviation = (end * (1.0 - end) / f64::from(n)).sqrt();
            assert!(((share - end).abs() / deviation - 1.959963985).abs() < 1e-6, "{share} of {n}: {end}");
        }
    }
    assert!(wilson(50.0, 50)[1] > 1.0 - 1e-12 && wilson(0.0, 50)[0] < 1e-12);
    assert_eq!(wilson(0.0, 0), [0.0, 1.0]);
}
