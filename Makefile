# Every job of the project, from build to demo. `make` alone lists them. CI calls only these targets, so whatever fails
# there can be repeated by hand.

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS   += --no-print-directory

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
COMMIT  ?= $(shell git rev-parse --verify -q HEAD 2>/dev/null || echo unknown)
LDFLAGS := -s -w -X main.version=$(VERSION) -X main.commit=$(COMMIT)

# Tools are pinned, each in a module of its own, so that none of them reaches into the program's dependencies. The go
# command builds them once and keeps them in its cache.
tool = go tool -modfile=tools/$(1)/go.mod $(1)

# The fast lane leaves out what needs minutes or a booted machine: test/, and by -short the tests that boot QEMU.
FAST_PACKAGES = $$(go list ./... | grep -v '^poolmgr/test/')
TEST_TIMEOUT  ?= 18m
TEST_FLAGS    ?=

##@ Help

.PHONY: help
help: ## List the targets (default)
	@awk 'BEGIN { FS = ":.*## "; print "usage: make TARGET" } \
	  /^##@/ { printf "\n%s\n", substr($$0, 5) } \
	  /^[a-z-]+:.*## / { printf "  %-18s %s\n", $$1, $$2 }' Makefile

##@ Build

.PHONY: build
build: setup-build ## Build the binaries into bin/
	@mkdir -p bin
	CGO_ENABLED=0 go build -trimpath -ldflags '$(LDFLAGS)' -o bin/ ./cmd/...

.PHONY: generate
generate: bin/.buf ## Generate the Go code of api/ from its .proto files
	scripts/generated.sh make

.PHONY: baseline
baseline: bin/.buf ## Take the present API as what later changes must stay compatible with
	$(call tool,buf) build --exclude-source-info -o api/baseline.binpb

.PHONY: fmt
fmt: ## Format Go and .proto files
	$(call tool,gofumpt) -w .
	$(call tool,buf) format -w

.PHONY: clean
clean: ## Remove what building and testing left in the tree
	rm -rf bin coverage.out

##@ Check

.PHONY: check
check: setup-build check-format check-quick vet lint test-short ## The fast lane: format, vet, lint, generated code, unit tests (< 3 min once its tools are built)

.PHONY: static
static: check-format check-api check-generated vet lint ## All that looks at the code without running it; CI's first step

.PHONY: check-format
check-format: ## Prove that the Go code is formatted
	@echo 'gofumpt -l .'
	@unformatted=$$($(call tool,gofumpt) -l .); \
	  if [[ -n $$unformatted ]]; then printf 'not formatted, run make fmt:\n%s\n' "$$unformatted" >&2; exit 1; fi

.PHONY: vet
vet: ## Run go vet
	go vet ./...

.PHONY: lint
lint: bin/.golangci-lint ## Lint the Go code (.golangci.yml)
	$(call tool,golangci-lint) run

.PHONY: check-api
check-api: bin/.buf ## Lint the .proto files (buf.yaml) and prove them compatible with api/baseline.binpb
	$(call tool,buf) format --diff --exit-code
	$(call tool,buf) lint
	$(call tool,buf) breaking --against api/baseline.binpb

.PHONY: check-generated
check-generated: bin/.buf ## Prove that the generated code is current, by generating it again
	scripts/generated.sh check

.PHONY: check-quick
check-quick: ## Prove the same by check sums, without building buf
	scripts/generated.sh quick

##@ Test

.PHONY: test-short
test-short: setup-test ## Unit tests with the race detector, without booting machines
	go test -race -short -timeout 5m $(TEST_FLAGS) $(FAST_PACKAGES)

.PHONY: test
test: setup-test setup-vm build ## Set up and run every test with the race detector, real microVMs included (< 20 min)
	$(call tool,gotestsum) --format pkgname --format-hide-empty-pkg -- -race -count=1 -timeout $(TEST_TIMEOUT) $(TEST_FLAGS) ./...

.PHONY: demo
demo: setup-build setup-vm build ## The whole story on real microVMs in a temporary folder (KEEP=1 leaves it running)
	@KEEP='$(KEEP)' scripts/demo.sh

##@ Set up

.PHONY: setup
setup: setup-build setup-test setup-vm ## Install what is missing for all of the above, saying what and why

.PHONY: setup-build setup-test setup-vm
setup-build setup-test setup-vm:
	@scripts/setup.sh $(@:setup-%=%)

# The large tools take a minute or two to build: say so the first time, and again when their version changes.
bin/.%: tools/%/go.mod
	@mkdir -p bin
	@echo 'building $* (the first time only; takes a minute or two)'
	@$(call tool,$*) --version >/dev/null
	@touch $@
