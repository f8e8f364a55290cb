//! The built-in stages. The crate [`dataplane_tables`] contains the lookup tables of the stages.

pub mod acl;
pub mod arp;
#[cfg(test)]
mod bench;
pub mod bridge;
pub mod capture;
pub mod checksum;
pub mod count;
pub mod cross;
pub mod drop;
pub mod filter;
pub mod flow_tag;
pub mod forwarding;
pub mod fragment;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
pub mod icmp;
pub mod icmp_error;
pub mod ingress;
pub mod kernel;
pub mod limit;
pub mod mac_swap;
pub mod mirror;
pub mod neighbor;
pub mod parameter;
pub mod parse;
pub mod reassemble;
pub mod resolution;
pub mod responder;
mod rings;
pub mod route;
pub mod sample;
#[cfg(test)]
mod tests;
pub mod ttl;
pub mod tx;
pub mod vlan;

use dataplane_core::pipeline::Registry;

/// Returns a registry of the built-in stages.
pub fn registry() -> Registry {
    let mut registry = Registry::new();
    register(&mut registry);
    registry
}

/// Adds all built-in stages to a registry.
pub fn register(registry: &mut Registry) {
    registry.add_described::<acl::Acl>("acl");
    registry.add_described::<arp::Arp>("arp");
    registry.add_described::<bridge::Bridge>("bridge");
    registry.add_described::<capture::Capture>("capture");
    registry.add_described::<checksum::Checksum>("checksum");
    registry.add_described::<count::Count>("count");
    registry.add_described::<cross::Cross>("cross");
    registry.add_described::<drop::Drop>("drop");
    registry.add_described::<filter::Filter>("filter");
    registry.add_described::<flow_tag::FlowTag>("flow_tag");
    registry.add_described::<fragment::Fragment>("fragment");
    registry.add_described::<icmp::Icmp>("icmp");
    registry.add_described::<icmp_error::IcmpError>("icmp_error");
    registry.add_described::<ingress::Ingress>("ingress");
    registry.add_described::<limit::Limit>("limit");
    registry.add_described::<mac_swap::MacSwap>("mac_swap");
    registry.add_described::<mirror::Mirror>("mirror");
    registry.add_described::<neighbor::Neighbor>("neighbor");
    registry.add_described::<parse::Parse>("parse");
    registry.add_described::<reassemble::Reassemble>("reassemble");
    registry.add_described::<route::Route>("route");
    registry.add_described::<sample::Sample>("sample");
    registry.add_described::<ttl::Ttl>("ttl");
    registry.add_described::<tx::Tx>("tx");
    registry.add_described::<vlan::Vlan>("vlan");
}
