//! Statistical tests.

/// The smallest number of values of each side for [`mann_whitney`]. With fewer values, the normal approximation is
/// too inaccurate.
pub(super) const FEWEST: usize = 8;

/// Returns the logarithm of the number of ways to choose `k` of `n`.
fn ln_choose(n: u64, k: u64) -> f64 {
    let ln_factorial = |n: u64| libm::lgamma(n as f64 + 1.0);
    ln_factorial(n) - ln_factorial(k) - ln_factorial(n - k)
}

/// Runs Fisher's exact test, one-sided. Returns the probability of at least `hits.1` hits on the second side, if a hit
/// has the same probability on both sides and all hits are distributed at random. `trials` are the numbers of trials.
pub(super) fn fisher_greater(hits: (u64, u64), trials: (u64, u64)) -> f64 {
    let (all, whole) = (hits.0 + hits.1, trials.0 + trials.1);
    if hits.0 > trials.0 || hits.1 > trials.1 {
        return 1.0;
    }
    let probability =
        |second: u64| (ln_choose(trials.1, second) + ln_choose(trials.0, all - second) - ln_choose(whole, all)).exp();
    let most = all.min(trials.1);
    (hits.1..=most).filter(|second| all - second <= trials.0).map(probability).sum::<f64>().min(1.0)
}

/// Runs the Mann-Whitney U test, with the normal approximation, the correction for ties and the correction for
/// continuity. Returns two probabilities: that the values of the second side are greater by chance, and that the values
/// are smaller by chance. Returns `None` for fewer than [`FEWEST`] values of a side.
pub(super) fn mann_whitney(first: &[f64], second: &[f64]) -> Option<(f64, f64)> {
    if first.len() < FEWEST || second.len() < FEWEST {
        return None;
    }
    let mut all: Vec<(f64, bool)> = first.iter().map(|value| (*value, false)).collect();
    all.extend(second.iter().map(|value| (*value, true)));
    all.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut ranks, mut ties, mut before) = (0.0, 0.0, 0.0);
    for equal in all.chunk_by(|a, b| a.0 == b.0) {
        let count = equal.len() as f64;
        let rank = before + (count + 1.0) / 2.0;
        ranks += rank * equal.iter().filter(|(_, is_second)| *is_second).count() as f64;
        ties += count * count * count - count;
        before += count;
    }
    let (n, m) = (first.len() as f64, second.len() as f64);
    let whole = n + m;
    // The number of pairs in which the value of the second side is greater. A tie counts as a half.
    let pairs = ranks - m * (m + 1.0) / 2.0;
    let variance = n * m / 12.0 * (whole + 1.0 - ties / (whole * (whole - 1.0)));
    if variance <= 0.0 {
        return Some((1.0, 1.0));
    }
    let upper_tail = |difference: f64| libm::erfc((difference - 0.5) / (2.0 * variance).sqrt()) / 2.0;
    let middle = n * m / 2.0;
    Some((upper_tail(pairs - middle), upper_tail(middle - pairs)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_near(found: f64, expected: f64) {
        assert!((found - expected).abs() < 1e-6, "{found} instead of {expected}");
    }

    /// Each expected value is the number of matching subsets, divided by the number of all subsets.
    #[test]
    fn fisher_test_matches_counted_subsets() {
        assert_near(fisher_greater((0, 3), (3, 3)), 1.0 / 20.0);
        assert_near(fisher_greater((0, 4), (13, 4)), 1.0 / 2380.0);
        assert_near(fisher_greater((3, 0), (3, 3)), 1.0);
        // The tea tasting of Fisher: 3 of 4 right.
        assert_near(fisher_greater((1, 3), (4, 4)), 17.0 / 70.0);
        assert_near(fisher_greater((0, 0), (5, 5)), 1.0);
        // The numbers of subsets of large tables are too large for a float.
        assert!((1e-12..1e-8).contains(&fisher_greater((100, 200), (2000, 2000))));
    }

    /// The exact probability of complete separation is 1 / 12870. The normal approximation gives 4.7e-4 for 8 values.
    #[test]
    fn mann_whitney_test_finds_separated_values_and_ignores_equal_values() {
        let low: Vec<f64> = (0..8).map(f64::from).collect();
        let high: Vec<f64> = (8..16).map(f64::from).collect();
        let (greater, smaller) = mann_whitney(&low, &high).unwrap();
        assert!((greater - 4.7e-4).abs() < 1e-5 && smaller > 0.999, "{greater} {smaller}");
        let (smaller, greater) = mann_whitney(&high, &low).unwrap();
        assert!((greater - 4.7e-4).abs() < 1e-5 && smaller > 0.999, "{greater} {smaller}");
        assert_eq!(mann_whitney(&[1.0; 20], &[1.0; 20]), Some((1.0, 1.0)));
        assert_eq!(mann_whitney(&low[..7], &high), None);
        // Interleaved values show no difference.
        let even: Vec<f64> = (0..20).map(|value| f64::from(value * 2)).collect();
        let odd: Vec<f64> = (0..20).map(|value| f64::from(value * 2 + 1)).collect();
        let (greater, smaller) = mann_whitney(&even, &odd).unwrap();
        assert!(greater > 0.3 && smaller > 0.3, "{greater} {smaller}");
    }
}
