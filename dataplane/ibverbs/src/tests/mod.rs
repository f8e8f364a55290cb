//! Tests of the provider with the fake device, and with rxe devices (software RDMA devices of the Linux kernel).
#![allow(unsafe_code)]

mod fake_driver;
mod flow_examples;
mod held_log;
mod lane;
mod message;
mod raw;
mod real;
pub(crate) mod strategies;
