//! Requests for the file of the black box. A client reads the file in parts.

use dataplane_control::observe::BlackBoxPart;
use dataplane_control::{ErrorCode, Refusal};

/// The number of bytes of a part.
const PART: usize = 256 << 10;
/// The maximum number of files that clients read at a time, because each file needs memory.
const MAX_FILES: usize = 4;

/// Returns the part at `offset` of the file `file` of a client. For the offset 0, first creates the file with `make`.
/// After the last part, sets `file` to `None`. `others` is the number of files of other clients. `make` returns `None` if
/// the config has no black box.
pub(super) fn part(
    file: &mut Option<Vec<u8>>,
    offset: u64,
    others: usize,
    make: impl FnOnce() -> Option<Vec<u8>>,
) -> Result<BlackBoxPart, Refusal> {
    if offset == 0 {
        *file = None;
        if others >= MAX_FILES {
            let message = format!("{MAX_FILES} other clients read the black box");
            return Err(Refusal::new(ErrorCode::Busy, message, "try again later"));
        }
        *file = Some(make().ok_or_else(|| {
            let help = "add `black_box = { folder = \"FOLDER\" }` to `[runtime]`, and restart the program";
            Refusal::new(ErrorCode::Failed, "the config has no black box", help)
        })?);
    }
    let Some(bytes) = file else {
        let help = "request the part at the offset 0 first, on the same connection";
        return Err(Refusal::new(ErrorCode::Failed, "this connection has no file of the black box", help));
    };
    let start = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
    let end = (start + PART).min(bytes.len());
    let part = BlackBoxPart { size: bytes.len() as u64, bytes: hex::encode(&bytes[start..end]) };
    if end == bytes.len() {
        *file = None;
    }
    Ok(part)
}
