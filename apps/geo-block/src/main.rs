//! An app with its own stage, which drops packets by source prefix. The app reads its file again when the file changes.

#[cfg(test)]
mod tests;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dataplane::mem::BATCH;
use dataplane::pipeline::Fingerprint;
use dataplane::prelude::*;
use dataplane::tables::MISS;
use dataplane::tables::lpm::{Lpm4, Lpm6};
use ipnet::IpNet;

/// The interval at which the app checks the file for a change.
const POLL_INTERVAL: Duration = Duration::from_millis(500);
const LISTED: Reason = Reason::of_stage(0);

/// Drops packets whose source address is in a prefix of a file.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct GeoBlock {
    /// File with one prefix per line. Text after `#` is a comment.
    file: PathBuf,
    #[serde(skip)]
    prefixes: Option<LiveReader<Arc<Prefixes>>>,
    /// One array for the source addresses of a batch, and one array for the results of their lookups.
    #[serde(skip)]
    scratch: Vec<[u32; BATCH]>,
}

impl Stage for GeoBlock {
    fn prepare(&mut self, setup: &mut Setup<'_>) -> Result<(), Problem> {
        let path = setup.path(&self.file);
        setup.declare_read_file(&path, "file")?;
        let version = Fingerprint::of(&path);
        let prefixes = setup.shared_by_workers(|_| Ok(LiveTable::new(Prefixes::read(&path)?)))?;
        self.prefixes = Some(prefixes.reader());
        if setup.worker_number() == 0 {
            setup.task("geo-block", Follower { path, version, prefixes });
        }
        self.scratch = vec![[0; BATCH]; 2];
        Ok(())
    }

    fn tick(&mut self, _ctx: &Ctx) {
        self.prefixes.iter_mut().for_each(LiveReader::refresh);
    }

    fn process(&mut self, _ctx: &Ctx, batch: &mut Batch) {
        let (Some(prefixes), [sources, found]) = (&self.prefixes, &mut self.scratch[..]) else { return };
        // Fast path for the leading untagged IPv4 packets, whose source address has a fixed offset.
        let plain = batch.is_plain_ipv4();
        let collect = |(head, source): (Head<'_, 34>, &mut u32)| {
            *source = u32::from_be_bytes([head.bytes[26], head.bytes[27], head.bytes[28], head.bytes[29]]);
            (plain || head.meta.is_untagged_ipv4()).then_some(())
        };
        let fast = batch.located_heads().zip(&mut *sources).map_while(collect).count();
        prefixes.v4.lookup_batch(&sources[..fast], &mut found[..fast]);
        for (index, _) in found[..fast].iter().enumerate().filter(|(_, value)| **value != MISS) {
            batch.get_mut(index).into_iter().for_each(|mut packet| packet.drop(LISTED));
        }
        if fast == batch.len() {
            return;
        }
        for mut packet in batch.iter_mut_from(fast) {
            let v4 = packet.ipv4().and_then(|ip| prefixes.v4.lookup(u32::from_be_bytes(ip.source)));
            let v6 = packet.ipv6().and_then(|ip| prefixes.v6.lookup(u128::from_be_bytes(ip.source)));
            if v4.or(v6).is_some() {
                packet.drop(LISTED);
            }
        }
    }

    fn info() -> StageInfo {
        StageInfo::new().reasons(&[("listed", "the source address is in a listed prefix")])
    }

    fn contract(&self) -> Contract {
        Contract::new().needs(Facts::HEADERS)
    }
}

struct Prefixes {
    v4: Lpm4,
    v6: Lpm6,
}

impl Prefixes {
    fn read(path: &Path) -> Result<Self, Problem> {
        let unreadable = |why: String| Problem::at("file", format!("{}: {why}", path.display()));
        // Opening a pipe blocks until there is a writer. Meanwhile, the program could not change the config.
        if fs::metadata(path).is_ok_and(|file| !file.is_file()) {
            return Err(unreadable("not a regular file".to_owned()));
        }
        let text = fs::read_to_string(path).map_err(|why| unreadable(why.to_string()))?;
        let no_memory = |error| Problem::host_problem("file", format!("{error}"));
        let (mut v4, mut v6) = (Lpm4::new().map_err(no_memory)?, Lpm6::new().map_err(no_memory)?);
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or_default().trim();
            let wrong = |why: String| Problem::at("file", format!("{}:{number}: {why}", path.display()));
            let inserted = match line.parse() {
                Ok(IpNet::V4(net)) => v4.insert(net.network().into(), net.prefix_len(), 0),
                Ok(IpNet::V6(net)) => v6.insert(net.network().into(), net.prefix_len(), 0),
                Err(_) if line.is_empty() => continue,
                Err(_) => return Err(wrong(format!("`{line}` is not a prefix")).help("write a prefix: 192.0.2.0/24")),
            };
            inserted.map_err(|error| wrong(error.to_string()))?;
        }
        Ok(Self { v4, v6 })
    }
}

/// Reads the file again when the file changes.
struct Follower {
    path: PathBuf,
    version: Option<Fingerprint>,
    prefixes: Arc<LiveTable<Prefixes>>,
}

impl Task for Follower {
    fn run(&mut self, stop: &StopSignal) -> dataplane::Result<()> {
        while !stop.wait(POLL_INTERVAL) {
            let version = Fingerprint::of(&self.path);
            if version != self.version {
                self.version = version;
                match Prefixes::read(&self.path) {
                    Ok(prefixes) => {
                        tracing::info!("geo-block: {} prefixes", prefixes.v4.len() + prefixes.v6.len());
                        self.prefixes.publish(prefixes);
                    }
                    Err(problem) => tracing::warn!("geo-block: {problem}"),
                }
            }
            self.prefixes.settle();
        }
        Ok(())
    }
}

fn main() -> dataplane::Result<()> {
    App::new().stage::<GeoBlock>("geo_block").run()
}
