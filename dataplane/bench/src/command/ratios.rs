//! Ratios on the command line.

/// Reads a ratio, such as `0.1%`. Returns the ratio as a number of at least 0 and below 1.
pub(super) fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
    let ratio = number.map(|number| number / 100.0).filter(|ratio| (0.0..1.0).contains(ratio));
    ratio.ok_or_else(|| format!("`{text}` is not a ratio below 100 %; help: write a number and %, such as 0.1%"))
}

/// Reads a load: a ratio above 0 and up to 100 %.
pub(super) fn load(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
    let ratio = number.map(|number| number / 100.0).filter(|ratio| *ratio > 0.0 && *ratio <= 1.0);
    ratio
        .ok_or_else(|| format!("`{text}` is not a load; help: write a percentage above 0% and up to 100%, such as 50%"))
}

/// Reads the width at which a search ends: the distance between the two bounds, relative to the upper bound. The
/// minimum is 0.01 %, because a search cannot distinguish rates that differ by less.
pub(super) fn width(text: &str) -> Result<f64, String> {
    let ratio = percent(text)?;
    let message = || format!("`{text}` is below the smallest width; help: write 0.01% or more");
    if ratio >= 0.0001 { Ok(ratio) } else { Err(message()) }
}
