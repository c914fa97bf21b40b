// Holds the tests' precompiled header: CMake makes one only for a target with a source that uses it.
