// Package e2e holds black-box tests: the real binaries, driven by the words of the README, over simulated hosts and over
// real microVMs. Tests named TestQEMU boot guests; the others take seconds.
package e2e
