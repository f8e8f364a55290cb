//! Checks the transition rules against a second, independent table with one line per transition.

use super::*;

/// `type from>to: required attributes / optional attributes`. Transitions to RESET and ERR have no lines, because they
/// have no attributes. Any other transition without a line does not exist.
const RULES: &str = "
    rc reset>init: pkey port access /
    uc reset>init: pkey port access /
    ud reset>init: pkey port qkey /
    raw reset>init: port /
    rc init>init: / pkey port access
    uc init>init: / pkey port access
    ud init>init: / pkey port qkey
    raw init>init: /
    rc init>rtr: av mtu dest rq_psn dest_rd rnr_timer / alt access pkey
    uc init>rtr: av mtu dest rq_psn / alt access pkey
    ud init>rtr: / pkey qkey
    raw init>rtr: /
    rc rtr>rts: timeout retry rnr_retry sq_psn qp_rd / cur alt access rnr_timer mig
    uc rtr>rts: sq_psn / cur alt access mig
    ud rtr>rts: sq_psn / cur qkey
    raw rtr>rts: / rate
    rc rts>rts: / cur alt access rnr_timer mig
    uc rts>rts: / cur alt access mig
    ud rts>rts: / cur qkey
    raw rts>rts: / rate
    rc rts>sqd: / notify
    uc rts>sqd: / notify
    ud rts>sqd: / notify
    raw rts>sqd: /
    rc sqd>rts: / cur alt access rnr_timer mig
    uc sqd>rts: / cur alt access mig
    ud sqd>rts: / cur qkey
    raw sqd>rts: /
    rc sqd>sqd: / port av timeout retry rnr_retry qp_rd dest_rd alt access pkey rnr_timer mig
    uc sqd>sqd: / av alt access pkey mig
    ud sqd>sqd: / pkey qkey
    raw sqd>sqd: /
    rc sqe>rts: /
    uc sqe>rts: / cur access
    ud sqe>rts: / cur qkey
    raw sqe>rts: /
";

const BITS: [(&str, u32); 22] = [
    ("state", 1),
    ("cur", 2),
    ("notify", 4),
    ("access", 8),
    ("pkey", 16),
    ("port", 32),
    ("qkey", 64),
    ("av", 128),
    ("mtu", 256),
    ("timeout", 512),
    ("retry", 1024),
    ("rnr_retry", 2048),
    ("rq_psn", 4096),
    ("qp_rd", 8192),
    ("alt", 16384),
    ("rnr_timer", 32768),
    ("sq_psn", 65536),
    ("dest_rd", 1 << 17),
    ("mig", 1 << 18),
    ("cap", 1 << 19),
    ("dest", 1 << 20),
    ("rate", 1 << 25),
];

fn bits(names: &str) -> u32 {
    names
        .split_whitespace()
        .map(|name| BITS.iter().find(|(known, _)| *known == name).expect("name listed in BITS").1)
        .sum()
}

fn expected(kind: &str, from: &str, to: &str) -> Option<(u32, u32)> {
    if to == "reset" || (to == "err" && from != "reset") {
        return Some((0, 0));
    }
    let key = format!("{kind} {from}>{to}:");
    let line = RULES.lines().map(str::trim).find(|line| line.starts_with(&key))?;
    let (required, optional) = line[key.len()..].split_once('/').expect("every rule has a slash");
    Some((bits(required), bits(optional)))
}

const KINDS: [(&str, QpType); 4] =
    [("rc", QpType::Rc), ("uc", QpType::Uc), ("ud", QpType::Ud), ("raw", QpType::RawPacket)];
const STATES: [(&str, QpState); 7] = [
    ("reset", QpState::Reset),
    ("init", QpState::Init),
    ("rtr", QpState::Rtr),
    ("rts", QpState::Rts),
    ("sqd", QpState::Sqd),
    ("sqe", QpState::Sqe),
    ("err", QpState::Err),
];

/// Checks every transition of every type with four masks: no attribute, the required attributes, the required and
/// optional attributes, and all attributes. Each mask is checked unchanged and with each pair of bits inverted.
#[test]
fn transition_rules_match_the_table() {
    let all: u32 = BITS.iter().map(|bit| bit.1).sum();
    for (kind_name, kind) in KINDS {
        for (from_name, from) in STATES {
            for (to_name, to) in STATES {
                let rule = expected(kind_name, from_name, to_name);
                let (required, optional) = rule.unwrap_or((0, 0));
                for base in [0, required, required | optional, all] {
                    for a in BITS {
                        for b in BITS {
                            let mask = base ^ a.1 ^ b.1;
                            let missing = required & !mask;
                            let forbidden = mask & !(required | optional | 1);
                            let want = match rule {
                                None => Err(TransitionError::NoSuchTransition),
                                Some(_) if missing | forbidden == 0 => Ok(()),
                                Some(_) => Err(TransitionError::Attributes {
                                    missing: Mask::from_bits_retain(missing),
                                    forbidden: Mask::from_bits_retain(forbidden),
                                }),
                            };
                            let got = check_transition(kind, from, to, Mask::from_bits_retain(mask));
                            assert_eq!(got, want, "{kind_name} {from_name}>{to_name} with {mask:#x}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn prepared_attributes_pass_the_transition_check() {
    for kind in [QpType::RawPacket, QpType::Ud] {
        let mut state = QpState::Reset;
        for (attributes, mask) in [QpAttributes::init(kind, 1, 7), QpAttributes::rtr(), QpAttributes::rts(kind)] {
            assert_eq!(check_transition(kind, state, attributes.state, mask), Ok(()));
            state = attributes.state;
        }
        assert_eq!(state, QpState::Rts);
    }
}

#[test]
fn unknown_types_and_states_have_no_transitions() {
    let mask = Mask::STATE;
    for (kind, from, to) in [
        (QpType::Unknown(77), QpState::Init, QpState::Reset),
        (QpType::XrcSend, QpState::Init, QpState::Reset),
        (QpType::Ud, QpState::Unknown(7), QpState::Reset),
        (QpType::Ud, QpState::Init, QpState::Unknown(9)),
    ] {
        assert_eq!(check_transition(kind, from, to, mask), Err(TransitionError::NoSuchTransition));
    }
}
