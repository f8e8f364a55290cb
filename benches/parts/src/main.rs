//! Measures the lookup tables of the library, and the ring buffer between two threads. `benches/peer/tables.c` and
//! `benches/peer/ring.c` measure the same operations in DPDK. The table benchmarks of both sides read the same files,
//! which `benches/peer/sets.py` writes.
//!
//!     parts lpm4|lpm6|exact|acl FILE CORE
//!     parts ring FROM_CORE CORE
//!     parts acl-change FILE CORE
//!
//! `acl-change` prints the time to change one rule and the time to compile all rules.
//!
//! The other commands first print `ready`, the setup time in seconds, and a checksum. The checksum covers the results
//! of all lookups, or the first items of the ring. For each input line `measure SECONDS`, these commands print the rate
//! in millions of lookups or items per second. The commands exit at the end of the input, or at the line `quit`.

mod acl;
mod exact;
mod file;
mod lpm;
mod ring;

use std::hint::black_box;
use std::io::{BufRead, Write};
use std::time::{Duration, Instant};

/// The number of lookups in one call.
const BATCH: usize = 32;

/// A lookup table, and the lookups of the benchmark.
trait Table {
    /// Returns the number of lookups.
    fn lookup_count(&self) -> usize;
    /// Performs the lookups in the range and stores their results in `values`.
    fn lookup(&self, range: std::ops::Range<usize>, values: &mut [u32]);
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let [_, kind, input, core] = &words[..] else {
        fail("usage: parts lpm4|lpm6|exact|acl|acl-change|ring FILE|FROM_CORE CORE")
    };
    let core = number(core);
    pin(core);
    let began = Instant::now();
    if kind == "ring" {
        let from = number(input);
        let (_, sum) = ring::pass_items(from, ring::FIRST_ITEMS, Duration::from_secs(60));
        return serve(began.elapsed(), sum, |time| ring::pass_items(from, u64::MAX, time).0);
    }
    let bytes = std::fs::read(input).unwrap_or_else(|error| fail(&format!("{input}: {error}")));
    if kind == "acl-change" {
        let [change, all] = acl::Rules::new(&bytes).change(Duration::from_secs(1));
        return println!("change {:.1} us, all {:.1} us", change.as_secs_f64() * 1e6, all.as_secs_f64() * 1e6);
    }
    let table: Box<dyn Table> = match kind.as_str() {
        "lpm4" => Box::new(lpm::V4::new(&bytes)),
        "lpm6" => Box::new(lpm::V6::new(&bytes)),
        "exact" => Box::new(exact::Flows::new(&bytes)),
        "acl" => Box::new(acl::Rules::new(&bytes)),
        _ => fail(&format!("unknown command {kind}")),
    };
    serve(began.elapsed(), sum(&*table), |time| measure(&*table, time));
}

/// Prints `ready`, the setup time and the checksum. Then measures the rate for each request on standard input.
fn serve(took: Duration, sum: u64, measure: impl Fn(Duration) -> f64) {
    println!("ready {:.3} {sum:016x}", took.as_secs_f64());
    for line in std::io::stdin().lock().lines() {
        let line = line.unwrap_or_else(|error| fail(&format!("standard input: {error}")));
        match line.split_once(' ').map(|(request, seconds)| (request, seconds.parse())) {
            Some(("measure", Ok(seconds))) => println!("rate {:.3}", measure(Duration::from_secs_f64(seconds))),
            _ if line == "quit" => break,
            _ => fail(&format!("unknown request: {line}")),
        }
        std::io::stdout().flush().unwrap_or_else(|error| fail(&format!("standard output: {error}")));
    }
}

fn number(core: &str) -> usize {
    core.parse().unwrap_or_else(|_| fail(&format!("{core} is not a core number")))
}

/// Pins this thread to a core.
fn pin(core: usize) {
    if !core_affinity::set_for_current(core_affinity::CoreId { id: core }) {
        fail(&format!("cannot pin this thread to core {core}"));
    }
}

fn fail(message: &str) -> ! {
    eprintln!("parts: {message}");
    std::process::exit(1)
}

/// Returns a checksum over the results of all lookups. The checksum depends on the order of the results.
fn sum(table: &dyn Table) -> u64 {
    let (mut sum, mut values) = (0xcbf2_9ce4_8422_2325_u64, [0; BATCH]);
    for at in (0..table.lookup_count()).step_by(BATCH) {
        table.lookup(at..at + BATCH, &mut values);
        for value in values {
            sum = (sum ^ u64::from(value)).wrapping_mul(0x100_0000_01b3);
        }
    }
    sum
}

/// Returns the rate in millions of lookups per second.
fn measure(table: &dyn Table, time: Duration) -> f64 {
    let (mut done, mut at, mut values) = (0u64, 0, [0; BATCH]);
    let began = Instant::now();
    loop {
        for _ in 0..1024 {
            table.lookup(at..at + BATCH, &mut values);
            black_box(&values);
            at += BATCH;
            if at == table.lookup_count() {
                at = 0;
            }
        }
        done += 1024 * BATCH as u64;
        let elapsed = began.elapsed();
        if elapsed >= time {
            return done as f64 / elapsed.as_secs_f64() / 1e6;
        }
    }
}
