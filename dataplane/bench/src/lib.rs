//! A tester for networks and network devices: sends streams of packets, judges the packets that return, and searches
//! the highest rate that a device under test carries.
//!
//! | module | responsibility |
//! | --- | --- |
//! | [`signature`] | the signature in the payload of each packet |
//! | [`config`] | the keys of a stream |
//! | [`values`], [`stream`] | the frames of a stream, and the values of their fields |
//! | [`replay`] | the frames of a capture |
//! | [`rate`] | rates in packets per second, bits per second, or percent of the line rate |
//! | [`sender`] | the schedule of a stream |
//! | [`judge`] | loss, duplicates, reordering, latency, jitter and gaps of a stream |
//! | [`series`] | counts by time |
//! | [`tester`] | trials on open ports |
//! | [`search`] | the search for the highest rate (MLRsearch) |
//! | [`setup`] | streams and ports from a config or the command line |
//! | [`verbs`] | benchmarks of RDMA operations between two queue pairs |
//! | [`report`] | the results as text and JSON |
//! | [`stored`] | results in files |
//! | [`compare`] | the comparison of two results |
//! | [`html`] | results as HTML pages |
//! | [`command`] | the command `dataplane bench` |

mod burst;
pub mod command;
pub mod compare;
pub mod config;
mod headers;
pub mod html;
pub mod judge;
pub mod rate;
pub mod replay;
pub mod report;
pub mod search;
pub mod sender;
pub mod series;
pub mod setup;
pub mod signature;
pub mod stored;
pub mod stream;
mod template;
pub mod tester;
pub mod values;
pub mod verbs;
