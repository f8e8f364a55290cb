//! The subcommands `compare` and `html` of `dataplane bench`.

use std::path::PathBuf;

use clap::Args;
use dataplane::{Error, Result};
use serde_json::json;

use super::output::{output, print, print_json};
use super::ratios::percent;
use crate::compare::{Verdict, compare as compare_results};
use crate::html::page;
use crate::stored::Stored;

#[derive(Debug, Args)]
#[command(after_help = "Exit status: 0 not worse, 1 worse, 2 the results cannot be compared.")]
pub(super) struct CompareArgs {
    /// The first result, such as the result of the last release
    #[arg(value_name = "A.json")]
    a: PathBuf,
    /// The second result
    #[arg(value_name = "B.json")]
    b: PathBuf,
    /// Ignore relative differences of rates and latencies up to this value
    #[arg(long, value_name = "PERCENT", default_value = "1%", value_parser = percent)]
    tolerance: f64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Args)]
pub(super) struct HtmlArgs {
    /// The file of a result in JSON
    #[arg(value_name = "RESULT.json")]
    result: PathBuf,
}

pub(super) fn compare(args: &CompareArgs) -> Result<()> {
    let (a, b) = (Stored::read(&args.a)?, Stored::read(&args.b)?);
    let files = [&args.a, &args.b].map(|path| path.display().to_string());
    match compare_results([&files[0], &files[1]], &a, &b, args.tolerance) {
        Ok(report) => {
            output(&report, args.json)?;
            match report.verdict {
                Verdict::Worse => Err(Error::Wire(format!("{} is worse than {}", files[1], files[0]))),
                Verdict::Better | Verdict::NoDifferenceShown => Ok(()),
            }
        }
        Err(reasons) => {
            if args.json {
                print_json(&json!({ "verdict": "unusable", "reasons": reasons }))?;
            }
            Err(Error::Config(format!("the results cannot be compared: {}", reasons.join("; "))))
        }
    }
}

pub(super) fn html(args: &HtmlArgs) -> Result<()> {
    let result = Stored::read(&args.result)?;
    print(&page(&args.result.display().to_string(), &result))
}
