//! Tests of the provider: on a device that is made up, and on real ones where the host has them.
#![allow(unsafe_code)]

mod lane;
mod made_up;
mod raw;
mod real;
