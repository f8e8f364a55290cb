//! A result as one HTML page that has no scripts and needs no other files.

mod chart;
mod document;
mod escape;
mod latency;
mod rate;
mod rfc2544;
mod search;
mod soak;

use self::document::Page;
use crate::stored::Stored;

/// Returns the page of a result. `name` is the text below the heading, such as the name of the file.
pub fn page(name: &str, result: &Stored) -> String {
    let mut page = Page::new(name, result);
    match result {
        Stored::Rate(report) => rate::add(&mut page, report),
        Stored::Search(report) => search::add(&mut page, report),
        Stored::Rfc2544(report) => rfc2544::add(&mut page, report),
        Stored::Latency(report) => latency::add(&mut page, report),
        Stored::Soak(report) => soak::add(&mut page, report),
        Stored::Calibration(report) => {
            page.text("The trial at the highest rate, and the trial at half of the highest rate.");
            page.heading("Highest rate");
            rate::add(&mut page, &report.max);
            page.heading("Half of the highest rate");
            rate::add(&mut page, &report.half);
        }
    }
    page.finish(result.environment())
}
