#include <pybind11/stl.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "base/error.hpp"
#include "bindings/core/arguments.hpp"
#include "bindings/core/bindings.hpp"
#include "bindings/gil.hpp"
#include "channel/layout/names.hpp"
#include "gateway/gateway.hpp"
#include "transport/sockets/sockets.hpp"
#include "transport/ucx/ucx.hpp"

namespace py = pybind11;

namespace flowtrain::bindings {
namespace {

using channel::Pool;
using gateway::Gateway;

using Session = std::pair<std::uint64_t, py::bytes>;

/// Ends the threads of a gateway without the GIL, if the interpreter lives. Those of a parent
/// process cannot be ended.
void destroy(Gateway* gateway) {
  if (gateway->pool().forked()) return;
  if (Py_IsInitialized() == 0 || PyGILState_Check() == 0) {
    delete gateway;
    return;
  }
  const WithoutGil release;
  delete gateway;
}

std::shared_ptr<Gateway> make(std::shared_ptr<Pool> pool, const std::string& interface,
                              const std::string& path, const std::string& ucx,
                              const std::vector<std::string>& ucx_others) {
  pool->check_open();
  if (path != "tcp" && path != "ucx" && path != "gpudirect") {
    throw BadArgument("Gateway: path='" + path + "' must be 'tcp', 'ucx' or 'gpudirect'");
  }
  const auto open = [&](transport::Receiver& receiver) -> std::unique_ptr<transport::Transport> {
    if (path == "tcp") return transport::open_sockets(interface, receiver);
    return transport::open_ucx(interface, receiver, {{ucx, ucx_others}, {}, path == "gpudirect"});
  };
  return {new Gateway(std::move(pool), open), &destroy};
}

transport::Session session_of(const Session& given, const char* what) {
  const std::string ticket = given.second;
  transport::Session session{given.first, {}};
  if (ticket.size() != session.ticket.size()) {
    throw BadArgument(std::string(what) + ": a ticket of " + std::to_string(ticket.size()) +
                      " bytes, where " + std::to_string(session.ticket.size()) + " are needed");
  }
  std::memcpy(session.ticket.data(), ticket.data(), ticket.size());
  return session;
}

void admit(Gateway& self, const std::string& name, const std::string& address, std::uint64_t pool,
           std::uint64_t process, const py::object& max_cells, const Session& to_peer,
           const Session& from_peer) {
  const gateway::Peer peer{
      name,
      address,
      pool,
      process,
      static_cast<std::uint32_t>(number_in(max_cells, "admit: max_cells", 1, lockfree::kMaxCells)),
      session_of(to_peer, "admit: to_peer"),
      session_of(from_peer, "admit: from_peer")};
  const WithoutGil release;
  self.admit(peer);
}

std::vector<std::pair<std::string, std::string>> wait(Gateway& self, double timeout_s) {
  const Deadline deadline = deadline_in(timeout_s);
  std::vector<Gateway::Ended> ended;
  {
    const WithoutGil release;
    ended = self.wait(deadline);
  }
  std::vector<std::pair<std::string, std::string>> out;
  for (Gateway::Ended& each : ended) out.emplace_back(std::move(each.peer), std::move(each.why));
  return out;
}

py::list traffic(Gateway& self) {
  std::vector<Gateway::Traffic> found;
  {
    const WithoutGil release;
    found = self.traffic();
  }
  py::list out;
  for (const Gateway::Traffic& each : found) {
    py::dict peer;
    peer["peer"] = each.peer;
    peer["connected"] = each.is_connected;
    peer["stalled_s"] = static_cast<double>(each.stalled_ns) * 1e-9;
    peer["sent_items"] = each.out.items;
    peer["sent_bytes"] = each.out.bytes;
    peer["staged_items"] = each.out.staged_items;
    peer["lost_items"] = each.out.lost;
    peer["unreleased_there"] = each.out.unreleased;
    peer["received_items"] = each.in.items;
    peer["received_bytes"] = each.in.bytes;
    peer["unreleased_here"] = each.in.unreleased;
    peer["waiting"] = each.in.waiting;
    peer["mirrors"] = each.in.mirrors;
    out.append(std::move(peer));
  }
  return out;
}

}  // namespace

void bind_gateway(py::module_& module) {
  const auto named = [](auto call) {
    return [call](Gateway& self, const std::string& name) {
      const WithoutGil release;
      return (self.*call)(name);
    };
  };
  py::class_<Gateway, std::shared_ptr<Gateway>>(module, "Gateway")
      .def(py::init(&make), py::arg("pool").none(false), py::kw_only(), py::arg("interface"),
           py::arg("path") = "tcp", py::arg("ucx") = "", py::arg("ucx_others") = py::list())
      .def_property_readonly("address", &Gateway::address)
      .def_property_readonly(
          "pool_nonce", [](const Gateway& self) { return self.pool().control().header().nonce; })
      .def_property_readonly(
          "max_cells",
          [](const Gateway& self) { return self.pool().control().geometry().max_cells; })
      .def_property_readonly(
          "max_lanes",
          [](const Gateway& self) { return self.pool().control().geometry().max_lanes; })
      .def("process", named(&Gateway::process), py::arg("peer"))
      .def("admit", &admit, py::arg("name"), py::kw_only(), py::arg("address"), py::arg("pool"),
           py::arg("process"), py::arg("max_cells"), py::arg("to_peer"), py::arg("from_peer"))
      .def(
          "route",
          [](Gateway& self, const std::string& name, const std::vector<std::string>& rings) {
            const WithoutGil release;
            self.route(name, rings);
          },
          py::arg("name"), py::arg("rings"))
      .def("connect", named(&Gateway::connect), py::arg("name"))
      .def("detach", named(&Gateway::detach), py::arg("name"))
      .def("forget", named(&Gateway::forget), py::arg("name"))
      .def(
          "add_guest",
          [](Gateway& self, const std::string& label, std::int32_t pid) {
            self.pool().check_open();
            channel::check_label(label);
            return self.pool().lanes().join_guest(label, pid, self.pool().name());
          },
          py::arg("label"), py::arg("pid"))
      .def(
          "remove_guest",
          [](Gateway& self, std::uint16_t lane, bool died) {
            channel::Pool& pool = self.pool();
            if (pool.closed() || !pool.lanes().holds(lane)) return;
            died ? pool.lanes().die(lane) : pool.lanes().leave(lane);
          },
          py::arg("lane"), py::kw_only(), py::arg("died"))
      .def("wait", &wait, py::arg("timeout_s"))
      .def("wake", &Gateway::wake)
      .def("traffic", &traffic)
      .def("explain",
           [](Gateway& self) {
             const WithoutGil release;
             return self.explain();
           })
      .def("close", [](Gateway& self) {
        const WithoutGil release;
        self.close();
      });
}

}  // namespace flowtrain::bindings
