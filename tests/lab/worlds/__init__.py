"""What tests of one part start from: machines with servers and containers, clusters, stand-ins."""
