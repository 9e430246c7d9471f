//! How far an answer is from the truth: relative errors of a field `[n, m]` or `[n, m, C]`, as neural operators are compared.

/// `||p - y|| / ||y||`; 0 where both are 0 everywhere.
pub fn relative_l2(predicted: &[f32], truth: &[f32]) -> f64 {
    ratio(predicted.iter().zip(truth).map(|(p, y)| [f64::from(*p) - f64::from(*y), f64::from(*y)]))
}

/// The mean of [`relative_l2`] over fields of so many values, one behind another; 0 of none.
pub fn mean_relative_l2(predicted: &[f32], truth: &[f32], width: usize) -> f64 {
    let fields = predicted.chunks_exact(width).zip(truth.chunks_exact(width));
    fields.map(|(p, y)| relative_l2(p, y)).sum::<f64>() / (truth.len() / width).max(1) as f64
}

/// [`relative_l2`] of values and slopes together (the Sobolev space H1). Slopes are central differences over a grid of length 1; at the edges they go around
/// to the other side where the field is periodic, and are one-sided of second order where it is not.
pub fn relative_h1(predicted: &[f32], truth: &[f32], [n, m]: [usize; 2], periodic: bool) -> f64 {
    let channels = truth.len() / (n * m).max(1);
    let values = |axis: usize| (0..n * m * channels).map(move |at| (axis, at));
    let slopes = values(0).chain(values(1)).filter(|(axis, _)| [n, m][*axis] > 2).map(|(axis, value)| {
        let (count, step) = if axis == 0 { (n, m * channels) } else { (m, channels) };
        let at = value / step % count;
        let slope = |of: &dyn Fn(usize) -> f64| {
            let value = |i: usize| of(value - at * step + i * step);
            let twice = match at {
                0 if !periodic => -3.0 * value(0) + 4.0 * value(1) - value(2),
                _ if at + 1 == count && !periodic => 3.0 * value(at) - 4.0 * value(at - 1) + value(at - 2),
                _ => value((at + 1) % count) - value((at + count - 1) % count),
            };
            twice * count as f64 / 2.0
        };
        [slope(&|i| f64::from(predicted[i]) - f64::from(truth[i])), slope(&|i| f64::from(truth[i]))]
    });
    let values = predicted.iter().zip(truth).map(|(p, y)| [f64::from(*p) - f64::from(*y), f64::from(*y)]);
    ratio(values.chain(slopes))
}

fn ratio(pairs: impl Iterator<Item = [f64; 2]>) -> f64 {
    let [error, size] = pairs.fold([0.0, 0.0], |[error, size], [e, y]| [error + e * e, size + y * y]);
    if error == 0.0 { 0.0 } else { (error / size).sqrt() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_relative_to_the_truth() {
        assert!((relative_l2(&[1.0, 1.0], &[3.0, 4.0]) - (13f64 / 25.0).sqrt()).abs() < 1e-12);
        assert_eq!(relative_l2(&[0.0], &[0.0]), 0.0);
        assert_eq!(mean_relative_l2(&[1.0, 0.0, 0.0, 2.0], &[1.0, 0.0, 0.0, 1.0], 2), 0.5);
        assert_eq!(mean_relative_l2(&[], &[], 2), 0.0);
        assert_eq!(relative_l2(&[1.0], &[0.0]), f64::INFINITY);
    }

    /// A plane has the slopes of its equation everywhere where edges are one-sided, and a jump where it goes around.
    #[test]
    fn slopes_are_those_of_the_grid() {
        let plane: Vec<f32> = (0..20).map(|place| 2.0 * (place / 5) as f32 / 4.0 - (place % 5) as f32 / 5.0).collect();
        let zero = vec![0.0; 20];
        let values: f64 = plane.iter().map(|x| f64::from(x * x)).sum();
        // An answer of nothing is wrong by all of it.
        assert!((relative_h1(&zero, &plane, [4, 5], false) - 1.0).abs() < 1e-12);
        let error = plane.iter().map(|x| x + 0.1).collect::<Vec<f32>>();
        let expected = (20.0 * 0.01 / (values + 20.0 * 5.0)).sqrt();
        assert!((relative_h1(&error, &plane, [4, 5], false) - expected).abs() < 1e-6);
        // Two places across, at the edges, have a slope of 1.5 then.
        let expected = (20.0 * 0.01 / (values + 20.0 * 5.0 + 8.0 * 1.25)).sqrt();
        assert!((relative_h1(&error, &plane, [4, 5], true) - expected).abs() < 1e-6);
        // Channels have their slopes each for itself.
        let both: Vec<f32> = plane.iter().flat_map(|x| [*x, 7.0]).collect();
        let error: Vec<f32> = both.iter().map(|x| x + 0.1).collect();
        let expected = (40.0 * 0.01 / (values + 20.0 * 49.0 + 20.0 * 5.0)).sqrt();
        assert!((relative_h1(&error, &both, [4, 5], false) - expected).abs() < 1e-6);
        // A line has slopes across alone.
        assert!((relative_h1(&[0.0; 4], &[0.0, 1.0, 2.0, 3.0], [1, 4], false) - 1.0).abs() < 1e-12);
    }
}
