//! The software device: the verbs contract in process, without privilege and without hardware.
#![allow(unsafe_code)]
