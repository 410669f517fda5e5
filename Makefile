# AF_XDP queues for Kubernetes. `make help` lists the targets; demo and test set up what they need.

GO       ?= go
VERSION  ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
BIN      := build/bin
TOOLS    := $(CURDIR)/build/tools
LDFLAGS  := -s -w -X main.version=$(VERSION)
PROGRAMS := afxdp-deviceplugin afxdp-cni afxdp-bench
COMMIT   ?= $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
IMAGE    ?= afxdp-project/afxdp:$(VERSION)
ARCHES   ?= amd64 arm64
E2E_ARCH  = $(shell $(GO) env GOARCH)
# What the tests on a cluster run and is not on the PATH; kind only if they are to make the cluster.
E2E_TOOLS = $(foreach t,helm $(if $(KUBECONFIG),,kind),$(if $(shell command -v $t),,$(TOOLS)/$t))
export PATH := $(TOOLS):$(PATH)

.DEFAULT_GOAL := help

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  %-14s %s\n", $$1, $$2}'

.PHONY: demo
demo: setup-demo build ## hand two NIC queues to an unprivileged process, end to end, without a cluster (root)
	@CGO_ENABLED=0 $(GO) build -o $(BIN)/demo ./test/demo
	@CGO_ENABLED=0 $(GO) build -trimpath -o $(BIN)/loopback github.com/containernetworking/plugins/plugins/main/loopback
	@$(BIN)/demo --bin $(BIN)

.PHONY: test
test: setup-test ## all tests with the race detector; as root also those that need the kernel
	@GO="$(GO)" hack/test.sh ./...

.PHONY: test-vm
test-vm: setup-vm ## drivers and kernels under QEMU: what they negotiate, receive, send and put back (root)
	@hack/vm-setup.sh
	@$(GO) test -tags vm -count=1 -timeout 30m -v -run 'MatrixSays$$' ./test/vm

.PHONY: e2e
e2e: $(E2E_TOOLS) ## the whole on a cluster: that of KUBECONFIG, or one that kind makes (docker, root; test/e2e/README.md)
	@$(MAKE) --no-print-directory image ARCHES=$(E2E_ARCH) IMAGE=afxdp-project/afxdp:e2e
	@mkdir -p $(BIN)
	@for p in pod delegate; do CGO_ENABLED=0 $(GO) build -trimpath -o $(BIN)/e2e-$$p ./test/e2e/$$p || exit 1; done
	@$(GO) -C tools/cluster run ./image --tag afxdp-project/e2e-pod:e2e --arch $(E2E_ARCH) \
		--out $(CURDIR)/build/images/e2e-pod-$(E2E_ARCH).tar $(CURDIR)/$(BIN)/e2e-pod
	@$(GO) test -tags e2e -count=1 -timeout 25m -v ./test/e2e

.PHONY: bench-busypoll
bench-busypoll: setup-vm ## busy polling against interrupts under overload, in a virtual machine (root)
	@hack/vm-setup.sh
	@$(GO) test -tags vm -count=1 -timeout 30m -v -run TestBenchBusyPoll ./test/vm

.PHONY: build
build: ## the static programs, into build/bin
	@mkdir -p $(BIN)
	@[ -e $(BIN)/afxdp-bench ] || echo "downloading modules and building: the first time this takes minutes"
	@for p in $(PROGRAMS); do CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $(BIN)/$$p ./cmd/$$p || exit 1; done

.PHONY: image
image: ## the container image, as build/images/afxdp-<arch>.tar, without docker (IMAGE=name:tag, ARCHES="amd64 arm64")
	@set -e; for arch in $(ARCHES); do \
		mkdir -p build/images/$$arch; \
		for p in $(PROGRAMS); do \
			CGO_ENABLED=0 GOARCH=$$arch $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o build/images/$$arch/$$p ./cmd/$$p; \
		done; \
		$(GO) -C tools/cluster run ./image --tag $(IMAGE) --arch $$arch --version $(VERSION) --commit $(COMMIT) \
			--source https://github.com/afxdp-project/afxdp --out $(CURDIR)/build/images/afxdp-$$arch.tar \
			$(addprefix $(CURDIR)/build/images/$$arch/,$(PROGRAMS)); \
		echo "build/images/afxdp-$$arch.tar: $(IMAGE)"; \
	done

.PHONY: manifests
manifests: ## write deployments/, the chart's README and its golden files again
	@$(GO) -C tools/cluster run ./chart $(CURDIR)
	@$(GO) -C tools/cluster test ./chart -run 'Kept$$' -update

.PHONY: chart
chart: ## the Helm chart: lint, what it renders, deployments/, and its admission policies as an API server judges by them
	@cd tools/cluster && $(GO) mod tidy -diff && $(GO) vet ./... && $(GO) test ./...

.PHONY: lint
lint: setup-lint $(TOOLS)/golangci-lint $(TOOLS)/bpf2go $(TOOLS)/protoc-gen-go $(TOOLS)/protoc-gen-go-grpc ## linters, import walls, generated files, module files, cross-build
	@GO="$(GO)" hack/lint.sh

.PHONY: generate
generate: setup-lint $(TOOLS)/bpf2go $(TOOLS)/protoc-gen-go $(TOOLS)/protoc-gen-go-grpc ## compile the XDP program and the protobuf API again
	@GO="$(GO)" hack/generate.sh .

.PHONY: bench
bench: setup-test ## benchmarks of the hot path
	@$(GO) test -run '^$$' -bench . -benchmem ./pkg/xsk ./pkg/busypoll

.PHONY: clean
clean: ## remove what was built
	rm -rf build

.PHONY: setup-demo setup-test setup-vm setup-lint
setup-demo setup-test setup-vm setup-lint: setup-%:
	@GO="$(GO)" hack/setup.sh $*

# The tools have modules of their own, so that their dependencies are not the project's.
$(TOOLS)/helm $(TOOLS)/kind: $(TOOLS)/%: tools/cluster/go.mod
	@mkdir -p $(TOOLS)
	@echo "building $* (once; it may take minutes)"
	@cd tools/cluster && $(GO) build -o $(TOOLS)/ $$($(GO) list tool | grep '/$*$$')
	@touch $@

$(TOOLS)/%: tools/go.mod
	@mkdir -p $(TOOLS)
	@echo "building $* (once; it may take minutes)"
	@cd tools && $(GO) build -o $(TOOLS)/ $$($(GO) list tool | grep '/$*$$')
	@touch $@
