//! The graph as JSON, for programs that are not ONNX tools.
//!
//! Same content as the text form without decisions' evidence: header, graphs, nodes with operands and results by
//! name, types, attributes. Large constants are named with element type, shape and content hash, not copied.
