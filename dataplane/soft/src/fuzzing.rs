//! Fuzz targets: functions that take any bytes. A target panics if the tested parser breaks a rule. The tests run each
//! target on the inputs of its corpus.

use crate::link::{self, Capture};

/// Reads a capture file. The frames must not have more bytes than the file.
pub fn capture(file: &[u8]) {
    let Ok(capture) = Capture::read(file) else { return };
    let bytes: usize = (0..capture.len()).map(|index| capture.frame(index).len()).sum();
    assert!(bytes <= file.len(), "{bytes} bytes of frames in a file of {} bytes", file.len());
    for index in 0..capture.len() {
        let _ = capture.time(index);
    }
    assert!(capture.damage.is_none_or(|damage| damage.offset < file.len()));
}

/// Parses two kinds of data from the kernel: netlink attributes, and the type information (BTF) of kernel functions.
pub fn interface(input: &[u8]) {
    link::fuzz(input);
}

#[cfg(test)]
mod tests {
    use dataplane_testing::corpus;

    #[test]
    #[cfg_attr(miri, ignore = "reads files")]
    fn targets_accept_their_corpora() {
        corpus::replay("capture", super::capture);
        corpus::replay("interface", super::interface);
    }
}
